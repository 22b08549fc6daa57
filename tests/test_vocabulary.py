"""Names are the field's words, and one name of a class or a type has one meaning.

BANNED holds words of a dialect that a newcomer does not know, with what to say instead. They are
looked for in the names of modules, classes, functions, methods, fields, parameters and headings.
CONTRACTS are words that others read: fields of journals and recordings, keys of recipes, options
of commands. They stay.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOPS = ("kernel_lsp", "trainer", "skills", "benchmarks", "scripts")
NOT_OURS = (
    "benchmarks/experts",
    "benchmarks/programs",
    "benchmarks/results",
    "benchmarks/spelled",
    "benchmarks/tasks",
    "benchmarks/triton/",
)
"""Programs under measurement are written as their authors would."""

BANNED = {
    "told": "encode, to_record, describe, message: whichever it is",
    "untold": "say what is missing",
    "telling": "encode, describe",
    "MOST": "MAX",
    "LEAST": "MIN",
    "manners": "device sharing",
    "fates": "offer tracking",
    "course": "plan",
    "courses": "plans",
    "nearly": "near misses",
    "spelled": "written, canonical form",
    "spelling": "canonical form",
    "pretending": "fake device",
    "weighing": "value model",
    "talk": "dialog",
    "talks": "dialogs",
    "proving": "validation; to prove is for preconditions",
    "earned": "rollout credit",
    "game": "RL task",
    "games": "RL tasks",
    "station": "gate server; an actor on a node",
    "stations": "nodes",
    "shown": "plan data, offers",
    "loser": "rejected candidate",
    "losers": "rejected candidates",
    "ground": "setup, environment",
}

CONTRACTS = {
    "trainer/config.py:shown",  # a key of recipes
}


COLLECTIONS = {
    "Arguments",
    "ClusterJobs",
    "CompiledKernels",
    "DescribedTiles",
    "DeviceTurns",
    "EntryPoints",
    "Episodes",
    "Journals",
    "Judgements",
    "Judges",
    "LabeledDims",
    "Notebooks",
    "Offers",
    "Plans",
    "Rows",
    "Shapes",
    "Spaces",
    "Timers",
    "Trees",
    "Trials",
    "Verdicts",
    "Versions",
}
"""Types named in the plural that hold what their singular names, if there is a type of this name.
Any other plural beside its singular would be two meanings of one word."""


ALIAS = re.compile(r"[A-Z]+[a-z]\w*")
"""How a type alias is written, as classes are."""


def words_of(name: str) -> set[str]:
    """The words of a name; those of constants in capitals."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)
    return {part if name.isupper() else part.lower() for part in parts}


def product_files() -> Iterator[tuple[str, Path]]:
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            shown = path.relative_to(ROOT).as_posix()
            if not shown.startswith(NOT_OURS):
                yield shown, path


def names_of(tree: ast.Module) -> Iterator[str]:
    """Names that a reader meets: of classes, functions, parameters, fields and constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from (one.id for one in ast.walk(target) if isinstance(one, ast.Name))


def types_of(tree: ast.Module) -> Iterator[str]:
    """Names that stand for a type: of classes, and of aliases of the module."""
    yield from (node.name.lstrip("_") for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                if ALIAS.fullmatch(name.lstrip("_")):
                    yield name.lstrip("_")


@cache
def found() -> tuple[dict[str, set[str]], dict[str, list[str]]]:
    """`path:name` -> its banned words, and name of a type -> the files that define it."""
    banned: dict[str, set[str]] = {}
    types: dict[str, list[str]] = defaultdict(list)
    for shown, path in product_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name in {path.stem, *names_of(tree)}:
            if words := words_of(name) & BANNED.keys():
                banned[f"{shown}:{name}"] = words
        for name in types_of(tree):
            types[name].append(shown)
    return banned, types


def headings() -> Iterator[tuple[str, str]]:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/*.md")]:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("#"):
                yield path.relative_to(ROOT).as_posix(), line


def test_names_have_no_banned_words() -> None:
    banned, _ = found()
    new = {name: {word: BANNED[word] for word in words} for name, words in banned.items()}
    new = {name: say for name, say in new.items() if name not in CONTRACTS}
    assert not new, f"say instead: {new}"


def test_the_contracts_are_still_there() -> None:
    banned, _ = found()
    gone = sorted(CONTRACTS - banned.keys())
    assert not gone, f"these are gone, take them off the list: {gone}"


def test_one_name_of_a_type_has_one_meaning() -> None:
    _, types = found()
    twice = {name: files for name, files in types.items() if len(files) > 1}
    assert not twice, f"these names have several meanings: {twice}"


def test_a_plural_holds_what_its_singular_names() -> None:
    _, types = found()
    wrong = {name for name in types if name.endswith("s") and name[:-1] in types} - COLLECTIONS
    assert not wrong, f"these name something else than their singulars do: {wrong}"


def test_headings_have_no_banned_words() -> None:
    for path, line in headings():
        words = {word.lower() for word in re.findall(r"[A-Za-z_]+", line)}
        assert not words & ({"told", "manners", "fates", "courses", "stations"}), (path, line)


def test_words_of_a_name() -> None:
    assert words_of("_toldTwice") == {"told", "twice"}
    assert words_of("MOST_ROWS") == {"MOST", "ROWS"}
    assert words_of("at_least") == {"at", "least"}
