"""Task suites: folders of Model/get_inputs files or of Triton kernels, read without running them,
and split by structural family.

A task's id is a hash of its program and workload, so the same task is recognized in a suite, a
journal and a search archive, and a changed one is another task. Files that are no task are counted
with their reason. Not covered: tasks that repeat a benchmark's (likeness.py), whether a task runs.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from kernel_lsp import analysis, parsing, wire
from kernel_lsp.errors import ConfigError, RewriteError
from kernel_lsp.files import read_source
from kernel_lsp.records import (
    Analysis,
    Program,
    Snapshot,
    Target,
    TargetKind,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.rewrite.kernels import harness
from kernel_lsp.workloads import workloads_for
from trainer.records import Skipped, Tally
from trainer.tasks.families import TaskStructure, structure

MANIFEST = "manifest.json"
ENTRY = "Model"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingTask:
    id: str
    name: str
    """Path below the suite's folder without its suffix."""
    path: Path
    source: str
    program: Program
    """What the file's Model needs, sliced out of it: what is searched and judged."""
    fingerprint: str
    """Of Model: `kernel_lsp.records.Target.fingerprint`, which journals keep."""
    workload: Workload
    structure: TaskStructure

    @property
    def family(self) -> str:
        """The family by which tasks are kept apart for held-out sets."""
        return self.structure.family


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSuite:
    folder: Path
    tasks: tuple[TrainingTask, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def by_name(self) -> dict[str, TrainingTask]:
        """The tasks by their names."""
        return {task.name: task for task in self.tasks}


def digest(text: str) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def task_id(program: str, workload: Workload) -> str:
    """``t`` and 24 hex digits of program and workload; comments, formatting and docstrings do not
    count."""
    text = wire.dumps([workload.inputs, workload.init, workload.training])
    return "t" + digest(f"{canonical(program)}\0{text}")[:24]


def fingerprint_id(fingerprint: str, workload: Workload) -> str:
    """``f`` and 24 hex digits, where the program was not kept: the same target called alike."""
    text = wire.dumps([workload.name, workload.inputs, workload.init, workload.training])
    return "f" + digest(f"{fingerprint}\0{text}")[:24]


def canonical(program: str) -> str:
    """The text as its syntax tree has it, without documentation; what does not parse stays as it
    is."""
    try:
        tree = parsing.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return program
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_documentation(body[0]):
            node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_documentation(node: Any) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


# --- reading -------------------------------------------------------------------------------------


def source_files(folders: Iterable[Path]) -> list[Path]:
    """Python files below these, in order. Raises ConfigError where there is no such folder."""
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(
                f"{folder} is no folder of tasks", "name a folder with Model/get_inputs files"
            )
        found += sorted(p for p in folder.rglob("*.py") if not p.name.startswith(("_", ".")))
    return found


def load(folder: Path) -> TaskSuite:
    """Every task below a folder. Raises ConfigError when there is no such folder; never for a bad
    file."""
    tally, tasks, known = Tally(), list[TrainingTask](), dict[str, str]()
    listed = _manifest(folder)
    for path in source_files([folder]):
        name = path.relative_to(folder).with_suffix("").as_posix()
        found = read_task(path, name)
        if isinstance(found, str):
            tally.skip(found, name)
        elif listed.get(f"{name}.py", digest(found.source)) != digest(found.source):
            tally.skip("its reference changed since the suite was written", name)
        elif found.id in known:
            tally.skip("the same task as another file", name)
        else:
            known[found.id] = name
            tasks.append(found)
    return TaskSuite(folder=folder, tasks=tuple(tasks), skipped=tally.skipped)


def read_task(path: Path, name: str) -> TrainingTask | str:
    """One file as a task, or why it is none."""
    try:
        text = read_source(path).text
    except (OSError, SyntaxError, UnicodeDecodeError):
        return "cannot be read"
    return make_task(text, name, path)


def make_task(text: str, name: str, path: Path) -> TrainingTask | str:
    """A text as a task, or why it is none."""
    snapshot = Snapshot(uri=path.absolute().as_uri(), text=text)
    found = analysis.analyze(snapshot)
    if found.problem:
        return "does not parse"
    target, kernels = analysis.find_target(found, ENTRY), list(_kernels(found))
    if target is None and len(kernels) == 1:
        return _kernel_task(snapshot, found, kernels[0], name, path)
    built = structure(text, ENTRY)
    if target is None or built is None:
        return "has no class Model with forward(), and no single kernel that it launches"
    if not _defines(text, "get_inputs"):
        return "has no get_inputs()"
    program = analysis.slice_program(snapshot, target)
    workload = Workload(name="get_inputs", origin=WorkloadOrigin.GET_INPUTS)
    return _task(text, name, path, target, program, workload, built)


def _kernels(found: Analysis) -> Iterator[Target]:
    return (t for t in found.targets if t.kind is TargetKind.TRITON_KERNEL and t.launchers)


def _kernel_task(
    snapshot: Snapshot, found: Analysis, kernel: Target, name: str, path: Path
) -> TrainingTask | str:
    """A kernel with the first workload of the function that launches it."""
    launcher = analysis.find_target(found, kernel.launchers[0])
    built = structure(snapshot.text, kernel.qualname)
    known = workloads_for(snapshot, launcher, None)[0] if launcher else ()
    if not known or built is None:
        return "its launcher has no workload"
    try:
        program = harness.judged_program(analysis.slice_program(snapshot, kernel), kernel)
    except RewriteError as error:
        return error.cause
    return _task(snapshot.text, name, path, kernel, program, known[0], built)


def _task(
    text: str,
    name: str,
    path: Path,
    target: Target,
    program: Program,
    workload: Workload,
    built: TaskStructure,
) -> TrainingTask:
    return TrainingTask(
        id=task_id(program.source, workload),
        name=name,
        path=path,
        source=text,
        program=program,
        fingerprint=target.fingerprint,
        workload=workload,
        structure=built,
    )


def _defines(text: str, name: str) -> bool:
    return any(
        isinstance(node, ast.FunctionDef) and node.name == name for node in parsing.parse(text).body
    )


def _manifest(folder: Path) -> dict[str, str]:
    """File -> hash, where the suite was written with one. Raises ConfigError when it cannot be
    read."""
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))["tasks"]
        return {name: row["sha256"] for name, row in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = "write the suite again, or remove the file to take its tasks as they are"
        raise ConfigError(f"{path} cannot be read: {error!r}", remedy) from error


# --- splitting -----------------------------------------------------------------------------------


class DataPart(StrEnum):
    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilySplit:
    """How families are dealt out; the same for ever, whichever tasks come later."""

    seed: int = 0
    validation: float = 0.1
    """Share of families, like ``test``."""
    test: float = 0.2
    held_out: frozenset[str] = frozenset()
    """Families that are TEST whatever the seed says, such as those of a suite that is reported
    on."""

    def __post_init__(self) -> None:
        shares = self.validation, self.test
        if not all(0 <= share < 1 for share in shares) or sum(shares) >= 1:
            raise ConfigError(
                f"shares {shares} leave nothing to train on", "validation + test must be below 1"
            )

    def part(self, family: str) -> DataPart:
        """By a hash of seed and family alone: tasks of one family are never apart."""
        if family in self.held_out:
            return DataPart.TEST
        raw = hashlib.sha256(f"{self.seed}\0{family}".encode()).digest()[:8]
        place = int.from_bytes(raw) / 2**64
        if place < self.test:
            return DataPart.TEST
        return DataPart.VALIDATION if place < self.test + self.validation else DataPart.TRAIN


def families(tasks: Iterable[TrainingTask]) -> frozenset[str]:
    """The families of tasks."""
    return frozenset(task.family for task in tasks)
