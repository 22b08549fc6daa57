"""A module that cannot be one graph: the parts of it that can, each judged in the whole.

`outcome_of_parts` asks the engine where the module breaks, searches its largest parts one after
another and gives the best that was found; the outcome names every break. Rewrites of several parts
that are each faster are joined and judged once more. A part's rewrite edits its statements alone;
reference, baselines and candidate are the whole module, so that nothing is claimed that a user
would not have."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from kernel_lsp import phases
from kernel_lsp.config import Settings
from kernel_lsp.errors import CaptureError
from kernel_lsp.evaluator import Gate
from kernel_lsp.pipeline import kept
from kernel_lsp.pipeline.opened import JobBench, engine_of
from kernel_lsp.pipeline.prepare import PreparedJob, apply_candidate
from kernel_lsp.records import Candidate, Outcome, Progress, Proposal, Report, TargetKind, rank
from kernel_lsp.rewrite import joining
from kernel_lsp.rewrite.client import Surveyed

MAX_PARTS = 3
"""Parts of one module that are searched."""
Optimize = Callable[[PreparedJob], Awaitable[Outcome]]
"""Search one part."""
JudgeInFull = Callable[[Candidate], Awaitable[Proposal]]
"""Judge one candidate in full."""


def may_have_parts(prepared: PreparedJob) -> bool:
    """Whether a part of the target could be found: only a recorded call can be run up to one."""
    program = prepared.program
    return program.home is not None and program.kind is TargetKind.MODULE and program.part is None


async def outcome_of_parts(
    prepared: PreparedJob,
    bench: JobBench,
    gate: Gate,
    settings: Settings,
    report: Report,
    whole: CaptureError,
    optimize: Optimize,
) -> Outcome:
    """Returns the best outcome of a module's parts, each searched with ``optimize``, joined where
    several gain. ``whole``: why the module is no graph; raised when nothing more is known.

    Parts are found by running the call: what its snapshot lacks is had by running the program
    again."""
    prepared = replace(prepared, program=kept.with_replay(prepared.program))
    name = prepared.target.qualname
    report(Progress(phase="capture", message=f"looking for parts of {name} that can be one graph"))
    try:
        surveyed = await _survey(prepared, bench, gate, settings)
    except CaptureError as error:
        if _is_replayed(prepared):  # what was in the way of running it again is news
            raise CaptureError(f"{whole.cause}; {error.cause}", error.remedy) from error
        raise whole from None
    if not surveyed.breaks and not surveyed.parts:
        raise whole
    found: list[Outcome] = []
    for one in surveyed.parts[:MAX_PARTS]:
        lines = one.part.words
        report(
            Progress(phase="capture", message=f"{lines} of {name} ({one.operations} operations)")
        )
        part = replace(prepared, program=replace(prepared.program, part=one.part))
        try:
            found.append(replace(await optimize(part), part=one.part))
        except CaptureError as error:
            found.append(Outcome(qualname=name, note=str(error), part=one.part))
    if not found:
        note = f"{whole.cause}; no run of its statements can be one graph"
        return Outcome(qualname=name, note=note, breaks=surveyed.breaks)
    tournament = bench.tournament(prepared, gate, settings, report)
    return await with_joined(prepared, _together(found, whole, surveyed), found, tournament.in_full)


async def with_joined(
    prepared: PreparedJob, best: Outcome, found: Sequence[Outcome], judge: JudgeInFull
) -> Outcome:
    """``best``, with the rewrite that joins those of all parts that are faster, if that is better
    still. ``found``: the outcomes of all parts."""
    gaining = [one for one in found if one.best is not None and not one.best.candidate.compiles]
    candidate = join_candidates(prepared, [one.best.candidate for one in gaining if one.best])
    if candidate is None:
        return best
    proposals = tuple(sorted((await judge(candidate), *best.proposals), key=rank))
    is_first = proposals[0].candidate.id == candidate.id
    parts = [one.part for one in gaining if one.part is not None and one.part != best.part]
    return replace(best, proposals=proposals, joined=tuple(parts) if is_first else ())


def join_candidates(prepared: PreparedJob, parts: Sequence[Candidate]) -> Candidate | None:
    """One candidate with the edits of several parts; None: there are fewer than two, or they do
    not go together."""
    edits = [one.edit for one in parts if one.edit is not None]
    if len(edits) < 2:
        return None
    text, span = prepared.snapshot.text, prepared.target.span
    begin = text.rfind("\n", 0, span.start) + 1
    edit = joining.join(textwrap.dedent(text[begin : span.end]), edits)
    if edit is None:
        return None
    made = replace(
        parts[0],
        edit=edit,
        steps=tuple(step for one in parts for step in one.steps),
        proofs=tuple(dict.fromkeys(proof for one in parts for proof in one.proofs)),
        summary="; ".join(dict.fromkeys(one.summary for one in parts)),
        caveats=tuple(dict.fromkeys(caveat for one in parts for caveat in one.caveats)),
        uses_triton=any(one.uses_triton for one in parts),
    )
    after = apply_candidate(prepared, made)
    if after is None:
        return None
    program = after.program
    number = hashlib.sha256(f"{program.entry}\0{program.source}".encode()).hexdigest()[:16]
    return replace(made, id=number, program=program.source, entry=program.entry)


def _is_replayed(prepared: PreparedJob) -> bool:
    home = prepared.program.home
    return home is not None and home.replay is not None


async def _survey(
    prepared: PreparedJob, bench: JobBench, gate: Gate, settings: Settings
) -> Surveyed:
    async with gate.forks() as start, engine_of(prepared, bench, settings, start) as engine:
        with phases.phase("survey"):
            return await engine.survey(prepared.program, prepared.workload, bench.device)


def _together(found: list[Outcome], whole: CaptureError, surveyed: Surveyed) -> Outcome:
    """The outcome of the part that gains most; where none does, of the largest, with every note."""
    best = min(found, key=_gain)
    if best.best is not None:
        return replace(best, breaks=surveyed.breaks)
    said = "; ".join(f"{one.part.words}: {one.note}" for one in found if one.part is not None)
    return replace(found[0], note=f"{whole.cause}; of its parts, {said}", breaks=surveyed.breaks)


def _gain(outcome: Outcome) -> float:
    """Lower is better."""
    best = outcome.best.evaluation.over_best if outcome.best is not None else None
    return -best.mid if best is not None else 0.0
