"""Kernels that sessions were about, as tasks: of a suite, or made anew from the program that was
kept.

Not covered: what was judged in a session (journals.py), kernels whose text nobody allowed to be
kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kernel_lsp import analysis, wire
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Program, Snapshot, TargetKind, Workload
from kernel_lsp.rewrite.kernels import harness
from trainer.records import Trajectory
from trainer.tasks.families import structure
from trainer.tasks.task_suites import TaskSuite, TrainingTask, fingerprint_id

NO_TEXT = "a session on a program that was not kept and is in no suite"
NO_KERNEL = "a session on something else than a Triton kernel"


def known_tasks(suites: Sequence[TaskSuite]) -> dict[str, TrainingTask]:
    """Task by each id that a trajectory may have: of its text, or of its fingerprint alone."""
    tasks = [task for suite in suites for task in suite.tasks]
    by_print = {fingerprint_id(task.fingerprint, task.workload): task for task in tasks}
    return by_print | {task.id: task for task in tasks}


def task_of(one: Trajectory, suites: Mapping[str, TrainingTask]) -> TrainingTask | str:
    """The kernel, or why there is none."""
    found = suites.get(one.task)
    if found is not None:
        return found if found.program.kernel else NO_KERNEL
    if one.program is None:
        return NO_TEXT
    try:
        program = program_of(one.program, one.entry)
        workload = wire.from_json(Workload, one.workload)
    except (RewriteError, ValueError, TypeError, KeyError) as error:
        return f"a session on a kernel that cannot be opened: {type(error).__name__}"
    built = structure(one.program, one.entry)
    if program is None or built is None:
        return NO_KERNEL
    return TrainingTask(
        id=one.task,
        name=f"{one.entry}-{one.task}",
        path=Path(one.origin),
        source=one.program,
        program=program,
        fingerprint="",
        workload=workload,
        structure=built,
    )


def program_of(source: str, kernel: str) -> Program | None:
    """The program of a kernel as it was judged: what works in place has its copies around it
    already. Raises RewriteError."""
    found = analysis.analyze(Snapshot(uri="file:///session.py", text=source))
    target = analysis.find_target(found, kernel)
    if target is None or target.kind is not TargetKind.TRITON_KERNEL:
        return None
    bare = Program(source=source, entry=kernel, kind=target.kind)
    if f"def {harness.ENTRY}(" not in source:
        return harness.judged_program(bare, target)
    launcher = next((name for name in target.launchers if name != harness.ENTRY), None)
    return Program(
        source=source,
        entry=harness.ENTRY,
        kind=TargetKind.FUNCTION,
        kernel=kernel,
        launcher=launcher,
    )
