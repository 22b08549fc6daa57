"""What is known about a job without running any of the user's code: target, program, workload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from kernel_lsp import analysis, notebooks, parsing, workloads
from kernel_lsp.errors import RewriteError, WorkloadError
from kernel_lsp.pipeline import applied, callers, kept
from kernel_lsp.pipeline.elsewhere import named_elsewhere
from kernel_lsp.records import (
    Analysis,
    Candidate,
    Job,
    Outcome,
    Program,
    Snapshot,
    Target,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.rewrite import edit
from kernel_lsp.rewrite.kernels import harness
from kernel_lsp.rewrite.kernels.caller_inputs import ReachedLauncher

NO_WORKLOAD = (
    f"no workload: nobody said what it is called with; {workloads.RECORD_A_RUN}, or write "
    "`# kernel-lsp: workload x=f32[128,4096]` above it, or get_inputs() in the same file"
)

ONLY_IPYTHON = (
    "it needs a line that only IPython understands (a magic or a shell command): write that line "
    "in Python"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedJob:
    job: Job
    snapshot: Snapshot
    target: Target
    program: Program
    workload: Workload
    reached: ReachedLauncher | None = None
    """Whose call says what the launcher of a kernel is called with, where nothing else does."""

    @property
    def reference(self) -> Program:
        """What candidates are judged against: always the whole, also where a part of it is
        rewritten."""
        return replace(self.program, part=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Edited:
    """What the user would have after accepting a candidate."""

    fingerprint: str
    program: Program
    """The target in the edited file, or sliced out of it: what is judged is what would be
    applied."""


def prepare(job: Job, data_dir: str | None = None) -> PreparedJob | Outcome:
    """Find the job's target, program and workload; an Outcome says which of them is missing.

    ``data_dir``: where recordings of programs lie; None: the target is always cut out of its file.
    """
    snapshot = Snapshot(uri=Path(job.path).absolute().as_uri(), text=job.text)
    found = analysis.analyze(snapshot)
    if found.problem:
        where = f"line {found.problem.line}: {found.problem.message}"
        return Outcome(qualname=job.qualname, note=f"the file does not parse ({where})")
    target = analysis.find_target(found, job.qualname)
    if (recorded := _recorded_job(job, snapshot, target, data_dir)) is not None:
        return recorded
    if target is None:
        names = ", ".join(t.qualname for t in found.targets) or "none"
        return Outcome(
            qualname=job.qualname, note=f"there is no such target in the file (found: {names})"
        )
    launcher, known, problems = _workloads(snapshot, target, found, job.folder)
    reached = None
    if all(one.origin is WorkloadOrigin.GET_INPUTS for one in known):
        # That means what is outermost.
        reached, others = callers.find_caller(snapshot, target, found, job.folder)
        problems = (*problems, *others)
    if reached is not None:
        launcher, known = reached.launcher, (callers.workload_of(reached),)
    try:
        program = _program(snapshot, target, launcher, reached)
    except RewriteError as error:
        return Outcome(qualname=job.qualname, note=error.cause)
    if notebooks.MAGIC in program.missing:
        return Outcome(qualname=job.qualname, note=ONLY_IPYTHON)
    if not known:
        return Outcome(qualname=job.qualname, note="; ".join(map(str, problems)) or NO_WORKLOAD)
    if program.kernel is not None:
        folder = Path(job.folder) if job.folder else None
        other = named_elsewhere(
            program.kernel, job.text, program.source, Path(job.path).absolute(), folder
        )
        program = replace(program, elsewhere=other)
    workload = applied.fit_workload(known[0], program.source, program.launcher)
    return PreparedJob(
        job=job,
        snapshot=snapshot,
        target=target,
        program=program,
        workload=workload,
        reached=reached,
    )


def reference(job: Job, data_dir: str | None = None) -> str | None:
    """The program that the job's proposals rewrite, for a journal that may keep it."""
    prepared = prepare(job, data_dir)
    return prepared.program.source if isinstance(prepared, PreparedJob) else None


def apply_candidate(prepared: PreparedJob, candidate: Candidate) -> Edited | None:
    """The target after the candidate's edit, or None when the file would not hold it any more."""
    if candidate.edit is None:
        return None
    text = edit.apply_edit(prepared.snapshot.text, prepared.target.span, candidate.edit)
    snapshot = replace(prepared.snapshot, text=text)
    name, is_recorded = prepared.target.qualname, prepared.program.home is not None
    target = (
        analysis.named_target(snapshot, name)
        if is_recorded
        else analysis.find_target(analysis.analyze(snapshot), name)
    )
    if target is None:
        return None
    if is_recorded:
        program = replace(prepared.program, source=text, part=None)
        return Edited(fingerprint=target.fingerprint, program=program)
    program = _program(snapshot, target, prepared.program.launcher, prepared.reached)
    return Edited(fingerprint=target.fingerprint, program=program)


def _recorded_job(
    job: Job, snapshot: Snapshot, target: Target | None, data_dir: str | None
) -> PreparedJob | None:
    """The target as a recorded program called it, also where the text alone does not show it; None
    where a workload is written, or nothing was recorded."""
    if data_dir is None:
        return None
    target = target or analysis.named_target(snapshot, job.qualname)
    if target is None or workloads.is_written(snapshot, target, job.folder):
        return None
    call = kept.find_call(Path(job.path).absolute(), job.text, target, Path(data_dir))
    if call is None:
        return None
    return PreparedJob(
        job=job, snapshot=snapshot, target=target, program=call.program, workload=call.workload
    )


def _program(
    snapshot: Snapshot, target: Target, launcher: str | None, reached: ReachedLauncher | None
) -> Program:
    """What is captured and judged. Raises RewriteError."""
    if reached is not None:
        return harness.judged_program(
            callers.program_of(snapshot, target, reached), target, launcher
        )
    return harness.judged_program(analysis.slice_program(snapshot, target), target, launcher)


def _module_of(snapshot: Snapshot, found: Analysis, launcher: str) -> Target | None:
    """The module whose method launches: it is called instead."""
    owner = harness.module_of(parsing.parse_text(snapshot.text), launcher)
    return None if owner is None else analysis.find_target(found, owner)


def _workloads(
    snapshot: Snapshot, target: Target, found: Analysis, folder: str | None
) -> tuple[str | None, tuple[Workload, ...], tuple[WorkloadError, ...]]:
    """Of a kernel also those of the function that launches it: they are that function's arguments.

    Of several launchers the first that has a workload of its own counts, else the first.
    """
    known, problems = workloads.workloads_for(snapshot, target, folder)
    launchers = sorted(target.launchers, key=lambda name: "." in name)  # a method is followed least
    for name in launchers:
        launcher = analysis.find_target(found, name) or _module_of(snapshot, found, name)
        if launcher is not None:
            more, others = workloads.workloads_for(snapshot, launcher, folder)
        elif (
            applied_with := applied.workloads_of(snapshot, target, name, found, folder)
        ) is not None:
            more, others = applied_with
        else:  # without a comment above it, it is no target of its own
            more, others = workloads.recorded_workloads(
                snapshot, replace(target, qualname=name), folder
            )
        problems += others
        if more:
            return name, (*more, *known) if name == launchers[0] else more, problems
    return next(iter(launchers), None), known, problems
