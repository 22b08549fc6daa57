"""The table of imports: which module may import which (kernel_lsp/ARCHITECTURE.md names the rule).

A new arrow is an architecture change: edit ALLOWED here, and say why.
"""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from kernel_lsp import parsing

ROOT = Path(__file__).resolve().parent.parent
BASE = {
    "devices",
    "records",
    "errors",
    "config",
    "wire",
    "files",
    "fences",
    "foreign",
    "leftovers",
    "parsing",
    "plain",
    "positions",
    "phases",
    "origins",
    "scratch",
    "tallies",
    "rulesets",
    "notebooks",
    "secret_names",
}

ALLOWED: dict[str, set[str]] = {
    "records": set(),
    # What is known of GPUs and CPUs, as data: cost models, the gate and searches read it.
    "devices": set(),
    "errors": set(),
    "positions": set(),
    "phases": set(),
    "parsing": set(),
    "wire": {"records", "errors"},
    "config": {"records", "errors", "wire", "foreign"},
    "origins": {"errors"},
    # What settings say of rules, and which paths they mean: the same in `check` and in the server.
    "patterns": set(),
    "rulesets": {"records", "config", "patterns"},
    # Cells as one program, for `check` and for editors.
    "notebooks": {"records", "files", "foreign", "parsing"},
    "bootstrap": set(),
    "files": {"foreign"},
    "fences": set(),
    "plain": {"fences"},
    "secret_names": set(),
    "scratch": {"leftovers"},
    "foreign": set(),
    # What confined code has left behind, for whoever gave it a folder.
    "leftovers": set(),
    "cache": BASE,
    "tallies": set(),
    "scores": set(),
    # What the command line offers for whole programs, and editors show.
    "offers": {"records", "wire", "files"},
    # The entry refuses with an error of ours, and what is tried lies in a scratch folder.
    "confinement": {"bootstrap", "errors", "scratch"},
    "process": {"wire", "errors", "confinement"},
    "documents": BASE,
    # What must hold where allowed code runs.
    "consent": BASE | {"confinement.layers"},
    "interpreter": BASE | {"confinement"},
    "analysis": BASE,
    "workloads": BASE,
    # Calls of recorded programs: written by the recorder, opened by engine, judge, worker and
    # timer.
    "snapshots": BASE,
    # Who made what comes from others.
    "signatures": {"errors", "files", "foreign"},
    "skillbook": BASE | {"signatures", "membership"},
    # Which team, and the last good state: what journal, skills and the pipeline read of it.
    "membership": {"errors", "files", "foreign"},
    # A team's registry stands on the journal's database; what it shares is checked as its makers
    # check it.
    "teams": BASE
    | {"membership", "journal", "signatures", "skillbook", "library", "models"}
    | {"agents.secrets"},  # what is shared says nothing of its maker
    "library": BASE | {"skillbook"},
    "agents": BASE | {"process", "confinement"},
    # A checkpoint is checked against the vocabulary and the shapes that this version can run.
    "models": BASE | {"agents.prompt_encoding", "agents.backbones.small.shape", "signatures"},
    "search": BASE | {"agents", "evaluator.roofline", "rewrite.choices"},
    "rewrite": BASE | {"process", "snapshots"},
    # Where another machine judges, its interpreter is asked there as one is here.
    "evaluator": BASE | {"process", "confinement", "bootstrap", "snapshots", "interpreter"},
    "presenter": BASE,
    # A team's address is its journal's.
    "journal": BASE | {"membership"},
    # The light half: what a server keeps in memory about its workspaces. No torch, no SQL, no
    # numpy.
    "session": BASE
    | {"documents", "analysis", "workloads", "rewrite.edit", "presenter", "journal.tracker"}
    | {"snapshots.store"},  # of which targets a recorded call can be opened
    "checker": BASE | {"analysis", "patterns"},
    # What of a workspace can be run, found by looking at it.
    "entries": BASE,
    "hostclient": BASE | {"process"},
    "cluster": BASE
    | {"interpreter", "skillbook"},  # what is done on its nodes comes from who uses it
    # The heavy half: the order of stages, in a process of its own.
    "pipeline": BASE
    | {"analysis", "workloads", "skillbook", "library", "agents", "search", "rewrite", "evaluator"}
    | {"presenter"}
    | {"journal", "models", "snapshots"}
    | {"process", "interpreter", "cache"}
    | {"checker"}  # which files a folder has
    | {"signatures"}  # of recordings that somebody else made
    | {"membership"},  # parameters that colleagues have measured
    # Its operators run in the engine process; walks and lessons stand on the stages of a job.
    "lineage": BASE
    | {
        "analysis",
        "workloads",
        "skillbook",
        "library",
        "agents",
        "rewrite",
        "evaluator",
        "pipeline",
    }
    | {"cache", "presenter"},
    # Whole programs: what they call, and their own step.
    "programs": BASE
    | {"analysis", "workloads", "snapshots", "pipeline", "rewrite.edit", "patching"},
    # Rewrites of installed packages as files of the workspace, and what such a file makes of the
    # package's.
    "patching": BASE | {"rewrite.edit"},
    # Accepted rewrites, judged again, patches of installed packages too. The host writes them when
    # they are accepted.
    "guarding": BASE
    | {"analysis", "evaluator", "rewrite.edit", "rewrite.kernels.harness", "patching"}
    | {"snapshots.store"},  # where recorded programs have imported a patched package from
    # It syncs with a team in idle moments.
    "host": BASE | {"pipeline", "journal", "guarding", "consent", "confinement", "teams"},
    "server": BASE
    | {"session", "hostclient", "documents", "presenter", "consent", "interpreter"}
    | {"entries", "signatures", "offers"}
    | {"checker", "workloads"}  # files that are not open; what names a file that is renamed
    | {"confinement"},  # the question says what will hold
    "cli": {"*"},
    "commands": {"*"},
    "__main__": {"cli"},
    "__init__": set(),
}

ONLY_STDLIB = {
    "devices",
    "records",
    "errors",
    "config",
    "wire",
    "bootstrap",
    "files",
    "fences",
    "foreign",
    "plain",
    "secret_names",
    "scratch",
    "leftovers",
    "cache",
    "tallies",
    "session",
    "hostclient",
    "positions",
    "phases",
    "parsing",
    "notebooks",
    "consent",
    "interpreter",
    "membership",
    "process",
    "confinement",
    "origins",
    "signatures",
    "analysis",
    "workloads",
    "entries",
    "patching",
}
ALSO = {"workloads.recording_file": {"tomlkit"}}
"""Written by `kernel-lsp record` in a process of ours, after the program has ended."""
MAY_IMPORT_TORCH = (
    "snapshots.opening",
    "snapshots.making",
    "snapshots.replaying",  # of a program that is run again, beside where it is opened
    "snapshots.remaking",  # tensors of unusual kinds, where a call is opened
    "rewrite",
    "evaluator",
    "agents.backbones.child",
    *(f"agents.backbones.small.{name}" for name in ("tensors", "network", "decoding", "child")),
)
MAY_IMPORT_LSP = ("server", "presenter.lsp")


def modules() -> list[Path]:
    return sorted((ROOT / "kernel_lsp").rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT / "kernel_lsp").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


@cache  # five tests ask it of each file
def imports(path: Path) -> frozenset[str]:
    """Absolute dotted names that a file imports anywhere, relative imports resolved."""
    found: set[str] = set()
    base = list(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(parsing.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            head = base[: len(base) - node.level + 1] if node.level else []
            stem = ".".join([*head, *([node.module] if node.module else [])])
            found |= {f"{stem}.{alias.name}" for alias in node.names}
    return frozenset(found)


def allowed(source: str, target: str) -> bool:
    top = source.split(".")[0]
    rules = ALLOWED[top]
    if "*" in rules or target.split(".")[0] in (top, "__version__"):
        return True
    return any(target == rule or target.startswith(rule + ".") for rule in rules)


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_first_party_imports_follow_the_table(path: Path) -> None:
    source = dotted(path)
    first_party = {
        n.removeprefix("kernel_lsp.") for n in imports(path) if n.startswith("kernel_lsp.")
    }
    wrong = {name for name in first_party if not allowed(source, name)}
    assert not wrong, f"{source} may not import {sorted(wrong)}"


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_heavy_libraries_stay_where_they_belong(path: Path) -> None:
    source, names = dotted(path), {n.split(".")[0] for n in imports(path)}
    if not source.startswith(MAY_IMPORT_TORCH):
        assert not names & {"torch", "triton"}
    if not source.startswith(MAY_IMPORT_LSP):
        assert not names & {"lsprotocol", "pygls"}
    if source.split(".")[0] in ONLY_STDLIB:
        third_party = (
            names - set(sys.stdlib_module_names) - {"kernel_lsp", "filelock", "platformdirs"}
        )
        third_party -= ALSO.get(source, set())
        assert not third_party, f"{source} is standard library only"


def rooms_of(top: Path) -> dict[str, set[str]]:
    """Room of ``top`` -> the other rooms of it that its files import, anywhere. A file that lies at
    the top is a room of its own."""
    prefix = ".".join(top.relative_to(ROOT).parts) + "."
    found: dict[str, set[str]] = {}
    for path in sorted(top.rglob("*.py")):
        if path.parent == top and path.name == "__init__.py":
            continue  # what it passes on is asked of it by others
        room = path.relative_to(top).parts[0].removesuffix(".py")
        names = {name for name in imports(path) if name.startswith(prefix)}
        targets = {name.removeprefix(prefix).split(".")[0] for name in names}
        found.setdefault(room, set()).update(targets - {room})
    return {room: targets & found.keys() for room, targets in found.items()}


def circle_of(rooms: dict[str, set[str]]) -> list[str]:
    """Rooms that import each other in circles, or lie between two circles; [] where none does."""
    left = set(rooms)
    while True:
        imported = {target for room in left for target in rooms[room]}
        inner = {room for room in left & imported if rooms[room] & left}
        if inner == left:
            return sorted(left)
        left = inner


TRAINER_ROOMS = (
    "tasks",
    "data",
    "algorithms",
    "policies",
    "training",
    "rollouts",
    "writer",
)
"""What is trained on, what is read of sessions, the arithmetic, the models, one run, how a model
is asked and judged; the writer stands on all. A room imports those before it alone."""
TRAINER_BASE = {"config", "papers", "records"}
"""At the top of the trainer, below its rooms; all other files there are programs, above them."""


def test_a_room_of_the_trainer_imports_only_those_before_it() -> None:
    rooms = rooms_of(ROOT / "trainer")
    folders = {one.parent.name for one in (ROOT / "trainer").glob("*/__init__.py")}
    assert folders == set(TRAINER_ROOMS)
    for place, room in enumerate(TRAINER_ROOMS):
        wrong = rooms[room] - {*TRAINER_ROOMS[:place], *TRAINER_BASE}
        assert not wrong, f"trainer/{room} may not import {sorted(wrong)}"
    for base in TRAINER_BASE:
        assert rooms[base] <= TRAINER_BASE, f"trainer/{base}.py may not import {rooms[base]}"


CODEGEN_ROOMS = ("core", "pointwise", "reduction", "regions", "backward")
"""The expression IR and its text, operations and templates, from nodes to a region, gradients. A
room imports those before it alone; all others are families of kernels, above them."""


def test_a_room_of_the_generators_imports_only_those_before_it() -> None:
    rooms = rooms_of(ROOT / "kernel_lsp" / "rewrite" / "codegen")
    for place, room in enumerate(CODEGEN_ROOMS):
        wrong = rooms[room] - {*CODEGEN_ROOMS[:place]}
        assert not wrong, f"rewrite/codegen/{room} may not import {sorted(wrong)}"


@pytest.mark.parametrize("top", ["trainer", "kernel_lsp", "benchmarks"])
def test_no_rooms_import_each_other_in_a_circle(top: str) -> None:
    assert circle_of(rooms_of(ROOT / top)) == []


@pytest.mark.parametrize(
    "top",
    sorted(
        one.parent
        for name in ("kernel_lsp", "trainer")
        for one in (ROOT / name).rglob("__init__.py")
        if one.parent != ROOT / name
    ),
    ids=lambda top: str(top.relative_to(ROOT)),
)
def test_no_rooms_of_a_room_import_each_other_in_a_circle(top: Path) -> None:
    assert circle_of(rooms_of(top)) == []


def test_a_circle_is_found() -> None:
    assert circle_of({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == ["b", "c"]
    assert circle_of({"a": {"b"}, "b": set()}) == []


TRAINER_NEVER = {
    "server",
    "presenter",
    "session",
    "cli",
    "commands",
    "host",
    "documents",
}
"""`analysis` is not among these: a suite's task and a logged proposal are one task when their
fingerprints are equal, so both must come from the same code. Nor is `pipeline`: an episode is the
product's own rollout (pipeline/episodes.py), not a copy of it."""


@pytest.mark.parametrize(
    "path", sorted((ROOT / "trainer").rglob("*.py")), ids=lambda path: path.stem
)
def test_the_trainer_uses_the_product_but_not_its_editor_half(path: Path) -> None:
    used = {
        node
        for node in ast.walk(parsing.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    names = imports_absolute(path) | {f"{n.module}.{alias.name}" for n in used for alias in n.names}
    parts = {name.split(".")[1] for name in names if name.startswith("kernel_lsp.")}
    assert not parts & TRAINER_NEVER


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_the_product_never_imports_the_trainer(path: Path) -> None:
    assert not any(name.split(".")[0] == "trainer" for name in imports(path))


def test_skills_import_only_the_rewrite_engine() -> None:
    for path in sorted((ROOT / "skills").glob("*/rewrite.py")):
        names = {n for n in imports_absolute(path) if n.startswith("kernel_lsp")}
        assert all(n.startswith("kernel_lsp.rewrite") for n in names), path


def imports_absolute(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(parsing.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_the_server_process_never_imports_torch_sql_or_numpy() -> None:
    code = (
        "import sys, kernel_lsp.server\n"
        "heavy = {'torch', 'triton', 'sqlalchemy', 'numpy', 'libcst', 'typer', 'rich', "
        "'transformers'}\n"
        "heavy |= {'httpx2', 'keyring', 'pathspec', 'pydantic', 'alembic', 'openai', 'jinja2'}\n"
        "heavy |= {'tomlkit', 'scipy', 'psutil', 'rank_bm25'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_map_names_every_part_of_the_package() -> None:
    package = ROOT / "kernel_lsp"
    page = (package / "ARCHITECTURE.md").read_text(encoding="utf-8")
    parts = [
        one.name
        for one in sorted(package.iterdir())
        if one.name[0] not in "_." and (one.suffix == ".py" or (one / "__init__.py").exists())
    ]
    missing = [part for part in parts if f"({part})" not in page]
    assert not missing, f"kernel_lsp/ARCHITECTURE.md has no link to {missing}"
    gone = [name for name in re.findall(r"\]\(([\w./-]+)\)", page) if not (package / name).exists()]
    assert not gone, f"kernel_lsp/ARCHITECTURE.md links to what is not there: {gone}"


def test_unit_tests_lie_where_the_code_lies() -> None:
    """A folder of unit tests is one of the code's: of the product, or a top folder of its own."""
    unit = ROOT / "tests" / "unit"
    folders = {p.relative_to(unit) for p in unit.rglob("*") if p.is_dir() and list(p.glob("*.py"))}
    assert [
        f for f in folders if not any((top / f).is_dir() for top in (ROOT / "kernel_lsp", ROOT))
    ] == []
