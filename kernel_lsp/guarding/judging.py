"""How accepted rewrites do on this machine, with these versions: each one through the gate again.

What is judged is the target as it stands in the file now, against the original that the evidence
holds, with fresh secret inputs. A target that was edited since is judged as it is. Speed is judged
on the kind of device that it was claimed for, right or wrong on any."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernel_lsp import analysis, notebooks
from kernel_lsp.errors import EvaluationError, KernelLspError
from kernel_lsp.evaluator import EvaluationRequest, Gate, evidence
from kernel_lsp.files import read_source
from kernel_lsp.guarding import patches, reverting
from kernel_lsp.patching import store
from kernel_lsp.records import (
    Acceptance,
    EvalStatus,
    Evaluation,
    Guarded,
    Holding,
    Program,
    Progress,
    Report,
    Snapshot,
    Target,
    Workload,
)
from kernel_lsp.rewrite.kernels import harness

Reopen = Callable[[Path, str, Target], tuple[Program, Workload] | None]
"""A recorded call of a target of this machine, by file, text and target; None: there is none."""
STILL_FASTER = 1.0
"""A rewrite is offered at `Settings.threshold` and kept while it is faster at all."""


async def guard(
    root: Path,
    found: Sequence[tuple[Path, Acceptance]],
    report: Report,
    *,
    gate: Gate,
    python: str,
    cuda: bool,
    timeout_s: float,
    data_dir: Path,
    reopen: Reopen = lambda path, text, target: None,
) -> AsyncIterator[Guarded]:
    """One verdict per acceptance, in order; those that others were accepted on top of are left out.

    ``timeout_s``: of each at most, whatever its file asks for.
    """
    chosen = latest(found)
    judging = _JudgingContext(
        gate=gate, python=python, cuda=cuda, timeout_s=timeout_s, data_dir=data_dir, reopen=reopen
    )
    for done, (path, acceptance) in enumerate(chosen):
        words = f"{acceptance.path}::{acceptance.qualname}"
        report(Progress(phase="evaluate", message=words, done=done, total=len(chosen)))
        yield await _one(judging, root, path, acceptance)


def latest(found: Sequence[tuple[Path, Acceptance]]) -> list[tuple[Path, Acceptance]]:
    """The acceptances without those whose rewritten target another rewrite began with."""
    built_upon = {(one.path, one.qualname, one.before) for _, one in found}
    return [
        (path, one) for path, one in found if (one.path, one.qualname, one.after) not in built_upon
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _JudgingContext:
    """What judges, and within which limits."""

    gate: Gate
    python: str
    cuda: bool
    timeout_s: float
    data_dir: Path
    reopen: Reopen


async def _one(judging: _JudgingContext, root: Path, path: Path, acceptance: Acceptance) -> Guarded:
    file = path.relative_to(root).as_posix()
    blank = Guarded(acceptance=acceptance, file=file, holding=Holding.GONE, detail="")
    try:
        text, whole = _read(root / acceptance.path, root)
    except FileNotFoundError:
        return replace(blank, detail=f"its file is not there any more; delete {file}")
    except (OSError, SyntaxError, UnicodeDecodeError, LookupError) as error:
        return replace(blank, holding=Holding.UNKNOWN, detail=f"its file cannot be read: {error}")
    if (patch := store.at(root / acceptance.path)) is not None:
        return await _one_patch(judging, blank, patch)
    snapshot = Snapshot(uri=(root / acceptance.path).as_uri(), text=text)
    found = analysis.analyze(snapshot)
    if (problem := found.problem) is not None:
        words = f"its file cannot be read: {problem.message} (line {problem.line})"
        return replace(blank, holding=Holding.UNKNOWN, detail=words)
    target = analysis.named_target(snapshot, acceptance.qualname)
    if target is None:
        return replace(blank, detail=f"the file has no such target any more; delete {file}")
    here = replace(blank, line=_line(text, whole, target))
    if target.fingerprint == acceptance.before:
        return replace(
            here, holding=Holding.REVERTED, detail=f"the original is back; delete {file}"
        )
    try:
        if acceptance.evidence.reference.home is None:
            launcher = _launcher(acceptance, file)
            now = harness.judged_program(analysis.slice_program(snapshot, target), target, launcher)
            request = _request(acceptance, now, judging)
        else:
            request = _recorded_call(acceptance, root / acceptance.path, text, target, judging)
        evaluation = await judging.gate.evaluate(request, lambda progress: None)
    except KernelLspError as error:
        # What is wrong with one must not cost the verdicts on the others.
        return replace(here, holding=Holding.UNKNOWN, detail=str(error))
    return _judge(here, whole, target, request, evaluation)


def _read(path: Path, root: Path) -> tuple[str, str]:
    """(what is Python of a file, all of it): two texts where it is a notebook."""
    text = notebooks.read_source(path, within=root).text
    return text, notebooks.read_json(path, within=root) if notebooks.is_notebook(path) else text


def _line(text: str, whole: str, target: Target) -> int:
    """The target's line in the file, from 1."""
    line = text.count("\n", 0, target.name_span.start) + 1
    if text == whole:
        return line
    spot = notebooks.program(notebooks.parse(whole).cells).spot(line, 1)
    return spot.file_line if spot is not None else 1


async def _one_patch(judging: _JudgingContext, blank: Guarded, found: store.FoundPatch) -> Guarded:
    """A rewrite of an installed package: the package's file with its patch module."""
    acceptance, module = blank.acceptance, found.patch.library.module
    try:
        now = patches.find_patched(found, judging.python, judging.data_dir)
        if isinstance(now, str):
            remedy = f"optimize it again, or kernel-lsp patches remove {module}"
            return replace(blank, holding=Holding.REVERTED, detail=f"{now}; {remedy}")
        rewritten = Snapshot(uri=now.path.as_uri(), text=now.rewritten)
        target = analysis.named_target(rewritten, acceptance.qualname)
        if target is None or acceptance.qualname.partition(".")[0] not in found.patch.names:
            return replace(blank, detail=f"its patch module has it no more; delete {blank.file}")
        request = _recorded_call(
            acceptance, now.path, now.rewritten, target, judging, original=now.original
        )
        evaluation = await judging.gate.evaluate(request, lambda progress: None)
    except (KernelLspError, OSError, SyntaxError, UnicodeDecodeError) as error:
        return replace(blank, holding=Holding.UNKNOWN, detail=str(error))
    judged = _judge(
        replace(blank, line=1), read_source(found.path).text, target, request, evaluation
    )
    if judged.failed and judged.revert is None:
        return replace(
            judged, detail=f"{judged.detail}; remove it: kernel-lsp patches remove {module}"
        )
    return judged


def _recorded_call(
    acceptance: Acceptance,
    path: Path,
    text: str,
    target: Target,
    judging: _JudgingContext,
    original: str | None = None,
) -> EvaluationRequest:
    """``text``: of the file with the rewrite. Raises EvaluationError where no recorded call is
    left."""
    recorded = judging.reopen(path, text, target)
    if recorded is None:
        cause = "no recorded call of it is on this machine"
        raise EvaluationError(cause, "record the program again: kernel-lsp record -- python …")
    before, workload = acceptance.evidence.reference, recorded[1]
    program = replace(
        before, home=recorded[0].home, source=before.source if original is None else original
    )
    now = replace(program, source=text)
    return replace(_request(acceptance, now, judging), reference=program, workload=workload)


def _launcher(acceptance: Acceptance, file: str) -> str:
    """Raises EvaluationError where somebody has edited the evidence."""
    before = evidence.request_of(acceptance.evidence)
    try:
        return harness.launcher_of(before.candidate_source, before.candidate_entry)
    except Exception as error:  # its text is parsed and followed, and may be anything
        cause = f"the program in {file} has no {before.candidate_entry} as it was written"
        raise EvaluationError(
            cause, "restore the file from the repository's history, or delete it"
        ) from error


def _request(acceptance: Acceptance, now: Program, judging: _JudgingContext) -> EvaluationRequest:
    before = evidence.request_of(acceptance.evidence, timeout_s=judging.timeout_s)
    device = "cuda" if before.device == "cuda" and judging.cuda else before.without_gpu
    return replace(
        before,
        candidate_source=now.source,
        candidate_entry=now.entry,
        device=device,
        require_speed=device == before.device and before.require_speed,
        python=judging.python,
        seed=None,
    )


def _judge(
    here: Guarded, text: str, target: Target, request: EvaluationRequest, evaluation: Evaluation
) -> Guarded:
    """``text``: of the file as it lies there, also of a notebook."""
    holding, detail = _holding(here.acceptance, request, evaluation)
    if target.fingerprint != here.acceptance.after:
        detail += "; it was edited since it was accepted"
    judged = replace(here, holding=holding, detail=detail, evaluation=evaluation)
    reverted = reverting.without(text, here.acceptance) if judged.failed else None
    if reverted is None:
        return judged
    return replace(judged, revert=reverting.patch(here.acceptance.path, text, reverted) or None)


def _holding(
    acceptance: Acceptance, request: EvaluationRequest, evaluation: Evaluation
) -> tuple[Holding, str]:
    if evaluation.status is EvalStatus.NOT_RUN:
        return Holding.UNKNOWN, evaluation.detail or "could not be judged"
    if evaluation.status is not EvalStatus.PASSED:
        return Holding.WRONG, f"{evaluation.status.value}: {evaluation.detail}"
    speedup = evaluation.speedup
    if not acceptance.evidence.require_speed:  # `verify --require correct --accept`
        return Holding.RIGHT, "right; its speed was not asked for when it was accepted"
    if not request.require_speed or speedup is None:
        measured_on = acceptance.evidence.evaluation.device_name or acceptance.evidence.device
        return (
            Holding.RIGHT,
            f"right; its speed was measured on {measured_on} and is not judged here",
        )
    words = f"{speedup.mid:.3g}x ({speedup.low:.3g} to {speedup.high:.3g})"
    claimed = acceptance.evidence.evaluation.speedup
    then = f", {claimed.mid:.3g}x when it was accepted" if claimed is not None else ""
    compiles = "torch.compile(" in request.candidate_source
    if evaluation.faster(STILL_FASTER, compiles=compiles):
        return Holding.PAYS, f"{words}{then}"
    return Holding.SLOW, f"not faster for sure any more: {words}{then}"
