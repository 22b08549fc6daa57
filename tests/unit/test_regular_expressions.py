"""Every regular expression of the package takes linear time: inputs made for each of them grow,
and the time may not grow faster. A comment, a SKILL.md or a reply of a model is written by
somebody else.

Patterns are read from the sources, so a new one is covered when it is written; what it is called
with (search, match, fullmatch …) is what is timed. The inputs are made of the pattern itself: what
may stand before, again and again what one of its parts takes, and then something that it does not
expect."""

import ast
import importlib
import re
import time
from collections.abc import Iterator
from functools import cache
from itertools import islice, product
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]

import pytest

import kernel_lsp
from kernel_lsp import fences
from kernel_lsp.analysis import analyze
from kernel_lsp.records import Snapshot
from kernel_lsp.skillbook import format
from kernel_lsp.workloads import workloads_for

PACKAGE = Path(kernel_lsp.__file__).parent
IMPORTS_TORCH = ("rewrite", "evaluator", "agents/backbones", "lineage", "cluster")
USES = ("search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split")
SHORT, GROWTH = 2_000, 4
SUSPICIOUS_S = 0.0004
"""Below it for `SHORT` characters nothing freezes: linear ones take a tenth."""
MAX_PAIRS = 250
"""Of a beginning and what is repeated, for one pattern; of more every N-th is taken."""
OUR_OWN_TEXT = {
    r"<metadata>.*?</metadata>": "of a picture that matplotlib has drawn",
    r"\(\d+ %.*?\)": "a message of ours",
    r"\btorch\.\w+\([^\n]*\bout=": "what codegen has written",
    r"self|\.\w+|\[[^\]]*\]": "what another pattern has matched",
}


def patterns() -> Iterator[tuple[str, re.Pattern[str], str]]:
    """(file:line, pattern, how it is used)."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name, tree = path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())
        module = None if name.startswith(IMPORTS_TORCH) else name
        methods = {
            (node.func.value.id, node.func.attr)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and _called(node.value) == "compile"
            ):
                target = node.targets[0]
                compiled = _compiled(node.value, module, target)
                if compiled is not None and isinstance(target, ast.Name):
                    used = [use for use in USES if (target.id, use) in methods] or ["finditer"]
                    yield from ((f"{name}:{node.lineno}", compiled, use) for use in used)
            elif _called(node) in USES:
                compiled = _compiled(node, None, None)
                if compiled is not None:
                    yield f"{name}:{node.lineno}", compiled, str(_called(node))


def _called(node: ast.AST) -> str | None:
    """The function of ``re`` that is called."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id == "re":
            return node.func.attr
    return None


def _compiled(node: ast.AST, module: str | None, target: ast.expr | None) -> re.Pattern[str] | None:
    """None for one that is put together where it is used, of names."""
    if module is not None and isinstance(target, ast.Name):
        dotted = "kernel_lsp." + module.removesuffix(".py").removesuffix("/__init__").replace(
            "/", "."
        )
        found = getattr(importlib.import_module(dotted), target.id, None)
        return found if isinstance(found, re.Pattern) and isinstance(found.pattern, str) else None
    assert isinstance(node, ast.Call)
    if not (isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)):
        return None
    flags = 0
    for one in (*node.args[1:], *(keyword.value for keyword in node.keywords)):
        for part in ast.walk(one):
            if (
                isinstance(part, ast.Attribute)
                and isinstance(part.value, ast.Name)
                and part.value.id == "re"
            ):
                flags |= getattr(re, part.attr)
    return re.compile(node.args[0].value, flags)


# --- inputs ---------------------------------------------------------------------------------


def attacks(pattern: re.Pattern[str], length: int) -> Iterator[str]:
    parsed = _parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    units = dict.fromkeys([*_units(parsed), *_characters(parsed), " ", "a", "-"])
    starts = dict.fromkeys(["", *_beginnings(parsed)])
    pairs = product(starts, filter(None, units))
    for start, unit in islice(pairs, 0, None, 1 + len(starts) * len(units) // MAX_PAIRS):
        yield start + unit * (length // len(unit)) + "\0"
        if start and len(start) < length // 8:
            yield (start + unit * 3) * (length // len(start + unit * 3)) + "\0"
    for start in starts:
        if start and len(start) < length // 8:
            yield (start + "a\n") * (length // len(start + "a\n")) + "\0"


def _units(parsed: object) -> Iterator[str]:
    """What one round of each repetition takes."""
    for op, argument in parsed:  # type: ignore[attr-defined]
        for inner in _inside(op, argument):
            yield _sample(inner)
            yield from _units(inner)


def _beginnings(parsed: object) -> Iterator[str]:
    text = ""
    for item in parsed:  # type: ignore[attr-defined]
        text += _sample([item])
        yield text
        for inner in _inside(*item):
            yield from _beginnings(inner)


def _characters(parsed: object) -> Iterator[str]:
    for op, argument in parsed:  # type: ignore[attr-defined]
        if op in (_constants.LITERAL, _constants.NOT_LITERAL):
            yield chr(argument)
        elif op is _constants.IN:
            yield from (_of_class([one]) for one in argument if one[0] is not _constants.NEGATE)
        for inner in _inside(op, argument):
            yield from _characters(inner)


def _inside(op: object, argument: object) -> list[object]:
    if op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
        return [argument[2]]  # type: ignore[index]
    if op in (_constants.SUBPATTERN, _constants.ASSERT, _constants.ASSERT_NOT):
        return [argument[-1]]  # type: ignore[index]
    if op is _constants.ATOMIC_GROUP:
        return [argument]
    return list(argument[1]) if op is _constants.BRANCH else []  # type: ignore[index]


def _sample(parsed: object) -> str:
    """Something that it takes, more or less."""
    text = ""
    for op, argument in parsed:  # type: ignore[attr-defined]
        if op is _constants.LITERAL:
            text += chr(argument)
        elif op is _constants.NOT_LITERAL:
            text += "a" if chr(argument) != "a" else "b"
        elif op is _constants.ANY:
            text += "a"
        elif op is _constants.IN:
            text += _of_class(argument)
        elif op is _constants.BRANCH:
            text += _sample(argument[1][0])
        elif op in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
            text += _sample(argument[2]) * max(1, argument[0])
        elif op not in (_constants.ASSERT, _constants.ASSERT_NOT):
            text += "".join(map(_sample, _inside(op, argument)))
    return text


@cache
def _class(text: str) -> str:
    found = re.compile(text, re.DOTALL)
    return next((c for c in "a1 \n-_./\"'#=,:;!<>[](){}|A\t" if found.fullmatch(c)), "a")


def _of_class(items: object) -> str:
    for op, argument in items:  # type: ignore[attr-defined]
        if op is _constants.NEGATE:
            wrong = {chr(value) for kind, value in items if kind is _constants.LITERAL}  # type: ignore[attr-defined]
            return next(c for c in "a1 \n-xyz" if c not in wrong)
        if op is _constants.LITERAL:
            return chr(argument)
        if op is _constants.RANGE:
            return chr(argument[0])
        if op is _constants.CATEGORY:
            words = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}
            kind = str(argument).removeprefix("CATEGORY_")
            text = words[kind.removeprefix("NOT_")]
            return _class(text.upper() if kind.startswith("NOT_") else text)
    return "a"


# --- time -----------------------------------------------------------------------------------


def seconds(pattern: re.Pattern[str], use: str, text: str, rounds: int = 1) -> float:
    call = getattr(pattern, use)
    best = float("inf")
    for _ in range(rounds):
        begun = time.thread_time()
        if use in ("sub", "subn"):
            call("", text)
        elif use == "finditer":
            for _found in call(text):
                pass
        else:
            call(text)
        best = min(best, time.thread_time() - begun)
    return best


def worst(pattern: re.Pattern[str], use: str) -> tuple[float, str]:
    """By how much the time grows where the input is `GROWTH` times as long, and for which."""
    found = (0.0, "")
    usual = max(SUSPICIOUS_S, 3 * seconds(pattern, use, "any text, " * (SHORT // 10), 3))
    for short, long in zip(attacks(pattern, SHORT), attacks(pattern, GROWTH * SHORT), strict=False):
        if seconds(pattern, use, short) > usual:
            ratio = seconds(pattern, use, long, 2) / seconds(pattern, use, short, 5)
            if ratio > GROWTH**1.5:  # or somebody else was at it
                ratio = min(ratio, seconds(pattern, use, long, 3) / seconds(pattern, use, short, 9))
            found = max(found, (ratio, short[:60]))
            if ratio > GROWTH**1.5:
                break
    return found


def test_no_pattern_takes_more_than_linear_time() -> None:
    found = [one for one in patterns() if one[1].pattern not in OUR_OWN_TEXT]
    assert len(found) > 100, "they are not found any more"
    slow = []
    for place, pattern, use in found:
        ratio, text = worst(pattern, use)
        if ratio > GROWTH**1.5:
            slow.append(f"{place} {use} {pattern.pattern[:100]!r}: x {ratio:.0f} for {text!r}")
    assert not slow, "\n".join(slow)


@pytest.mark.parametrize(
    ("pattern", "use"),
    [
        (r"#{1,2}\s+(?P<title>.+?)\s*#*\s*", "fullmatch"),
        (r"(?:\[[^\]]*\]|[^\s\[\]])+|[\[\]]", "findall"),
        (r"^(```|~~~).*?^\1[ \t]*$", "search"),
        (r"\s+$", "search"),
    ],
)
def test_patterns_that_are_slow_are_found(pattern: str, use: str) -> None:
    """Those that froze a hover, and what is known to be slow."""
    ratio, _ = worst(re.compile(pattern, re.MULTILINE | re.DOTALL), use)
    assert ratio > GROWTH**1.5


def slow_comments() -> dict[str, str]:
    many = 200_000
    return {
        "brackets": "# kernel-lsp: workload " + "[" * many,
        "parentheses": "# kernel-lsp: workload " + "(" * many,
        "rules": "# kernel-lsp: off " + "KL101 " * (many // 6) + "x",
        "marks": "# " * (many // 2),
        "words": "# kernel-lsp: workload " + "x=f32[1] " * (many // 9),
    }


@pytest.mark.parametrize("comment", slow_comments().values(), ids=slow_comments())
def test_a_comment_of_200_kb_costs_no_more_than_reading_it(comment: str) -> None:
    text = f"import torch\n\n\n{comment}\ndef forward(x):\n    return torch.diag(x) @ x\n"
    begun = time.thread_time()
    snapshot = Snapshot(uri="file:///a.py", text=text)
    for target in analyze(snapshot).targets:
        workloads_for(snapshot, target, None)
    assert time.thread_time() - begun < 0.5, "a hover waits for it"


@pytest.mark.parametrize(
    "body",
    [
        "# " + " " * 2000 + "x" + " " * 2000 + "\n",
        "# x" + " #" * 30_000 + "x\n",
        "```a\n" * 12_000,
        "# a\n" * 15_000,
        "x\n" * 30_000,
    ],
)
def test_a_skill_of_64_kb_is_read_in_half_a_second(tmp_path: Path, body: str) -> None:
    head = "---\nname: a\ndescription: b\nmetadata: {scope: graph, tags: [c], version: 1}\n---\n"
    (tmp_path / "SKILL.md").write_text(head + body)
    begun = time.thread_time()
    assert format.lint(tmp_path)
    assert time.thread_time() - begun < 0.5


@pytest.mark.parametrize(
    "front",
    [
        "".join(f"k{n}: 1\n" for n in range(7_000)),
        "[" * 60_000,
        "a: " + "{b: " * 15_000,
        "- " * 30_000,
    ],
    ids=["fields", "lists", "maps", "entries"],
)
def test_front_matter_of_64_kb_is_read_in_seconds(tmp_path: Path, front: str) -> None:
    """PyYAML takes most of it, and linear time."""
    (tmp_path / "SKILL.md").write_text(f"---\n{front}\n---\n# a\n")
    begun = time.thread_time()
    assert format.lint(tmp_path)
    assert time.thread_time() - begun < 4.0


def test_headings_are_what_they_were() -> None:
    text = "# Key Idea ##\n a\n## Use  \n##\n#x\n# \n```\n# no\n```\nb\n# C# #\n"
    use = "##\n#x\n# \n```\n# no\n```\nb\n"
    assert format._sections(text) == [("Key Idea", " a\n"), ("Use", use), ("C#", "")]


def test_code_blocks_are_what_one_expression_takes_for_them() -> None:
    one = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
    pieces = ("```py\n", "```\n", "~~~ \n", "a\n", "``` \t\n", "```")
    for parts in product(pieces, repeat=4):
        text = "".join(parts)
        assert list(fences.blocks(text)) == [found.span() for found in one.finditer(text)], text
        assert fences.without(text) == one.sub("", text)
        assert fences.mask_blocks(text) == one.sub(
            lambda found: re.sub(r"[^\n]", " ", found[0]), text
        )
