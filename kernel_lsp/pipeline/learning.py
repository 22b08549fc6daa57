"""Accepted work becomes drafts of skills: what a person kept, and what a search has clearly
improved.

A draft is staged with its papers, or kept as refused with the reason, so that the same is not
drafted again. Nothing here is measured and nothing reaches a job: that is what proving/ and
`kernel-lsp skills verify` are for. A verified skill's use is counted here, and one that stopped
helping is retired."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_lsp import skillbook
from kernel_lsp.agents import summary, summary_rule
from kernel_lsp.agents.summary_rule import MeasuredPlace
from kernel_lsp.config import Settings
from kernel_lsp.errors import SkillError
from kernel_lsp.library import SkillLibrary, admission
from kernel_lsp.library.store import now
from kernel_lsp.library.usage import UsageStatistics, helps_no_more, skill_of
from kernel_lsp.pipeline.opened import JobBench, Opened
from kernel_lsp.records import (
    ArgSpec,
    Attempt,
    Event,
    EventKind,
    LearnedSkill,
    Lesson,
    Origin,
    Progress,
    Proposal,
    Report,
    Skill,
    SkillDraft,
    Standing,
    Step,
    Verdict,
)
from kernel_lsp.search.fitness import best as best_of
from kernel_lsp.skillbook import Skillbook, conditions

if TYPE_CHECKING:  # SQLAlchemy: jobs that learn nothing do not wait for it
    from kernel_lsp.journal import Journal

KEPT = (EventKind.KEPT, EventKind.KEPT_COMMITTED)
TAKEN_BACK = (EventKind.REVERTED, EventKind.DELETED)
KEPT_EVENT, SEARCH_EVENT = "kept", "search"


def hardware_of(bench: JobBench) -> str:
    """The hardware under which results are kept: ``cuda:sm_90``, ``cpu``."""
    return f"cuda:{bench.probe.capability}" if bench.device == "cuda" else bench.device


# --- what a person kept -------------------------------------------------------------------


def from_journal(journal: Journal, library: SkillLibrary, book: Skillbook) -> list[LearnedSkill]:
    """Drafts of every rewrite that was kept and not taken back; what is known is not drafted
    again."""
    kept = {event.proposal: event.kind in KEPT for event in journal.events(*KEPT, *TAKEN_BACK)}
    return _of_proposals([name for name, stays in kept.items() if stays], journal, library, book)


def from_events(journal: Journal, events: Sequence[Event], data_dir: Path) -> list[LearnedSkill]:
    """Drafts of the rewrites that have just been kept. Raises SkillError when the library cannot be
    written."""
    kept = [event.proposal for event in events if event.kind in KEPT]
    book = skillbook.load(skillbook.folders(data_dir=data_dir)) if kept else Skillbook()
    return _of_proposals(kept, journal, SkillLibrary(data_dir), book)


def _of_proposals(
    names: Sequence[str], journal: Journal, library: SkillLibrary, book: Skillbook
) -> list[LearnedSkill]:
    stored = (found for name in names for found in journal.proposals(proposal=name)[-1:])
    return stage((lesson for one in stored for lesson in of_kept(one.proposal)), library, book)


def of_kept(proposal: Proposal) -> list[Lesson]:
    """The lessons of a kept proposal, by rule, without the text of the code. None where it has no
    steps, or a learned skill had led to it."""
    if skill_of(proposal) is not None:
        return []
    evaluation = proposal.evaluation
    device = "cuda" if evaluation.device == "cuda" else "cpu"
    inputs = proposal.workload.inputs or proposal.inputs
    seen = MeasuredPlace(
        device=device,
        device_name=evaluation.device_name,
        architecture=summary_rule.architecture(evaluation) if device == "cuda" else None,
        inputs=inputs,
        layouts=_layouts(inputs),
        torch=str(evaluation.environment.get("torch") or "") or None,
        speedup=evaluation.speedup,
    )
    return draft_by_rule(proposal, seen, KEPT_EVENT)


def draft_by_rule(
    proposal: Proposal, seen: MeasuredPlace, event: str, before: Sequence[Step] = ()
) -> list[Lesson]:
    """What the rule writes down of a proposal. ``before``: the steps that were suggested first, if
    known."""
    origin = _origin(proposal, seen, event)
    drafts = summary_rule.drafts(proposal.candidate.steps, seen, before)
    other = tuple(before) if tuple(before) != proposal.candidate.steps else ()
    return [Lesson(draft=draft, origin=origin, instead_of=other) for draft in drafts]


# --- what a search improved ---------------------------------------------------------------


def of_search(
    one: Opened, attempts: Sequence[Attempt], drafts: Sequence[SkillDraft] = (), writer: str = ""
) -> list[Lesson]:
    """The lessons of a search whose best beats the first right attempt and the baseline by
    `summary.BETTER`: by rule, and what a model drafted, with the machine-checkable papers that no
    model writes."""
    found = find_improvement(attempts)
    if found is None or found.proposal is None or skill_of(found.proposal) is not None:
        return []
    seen, proposal = seen_of(one, found.proposal), found.proposal
    first = _first(attempts)
    before = first.candidate.steps if first and first.candidate else ()
    lessons = draft_by_rule(proposal, seen, SEARCH_EVENT, before)
    origin = replace(_origin(proposal, seen, SEARCH_EVENT), writer=writer)
    asked = summary_rule.requirements(seen)
    lessons += [Lesson(draft=replace(draft, requires=asked), origin=origin) for draft in drafts]
    return lessons


def keep_lessons(
    one: Opened,
    attempts: Sequence[Attempt],
    drafts: Sequence[SkillDraft],
    writer: str,
    data_dir: Path,
) -> list[LearnedSkill]:
    """What a search has taught, staged. Raises SkillError when the library cannot be written."""
    lessons = of_search(one, attempts, drafts, writer)
    return (
        stage(lessons, SkillLibrary(data_dir), one.bench.skills, one.capture.inputs)
        if lessons
        else []
    )


def find_improvement(attempts: Sequence[Attempt]) -> Attempt | None:
    """The best attempt, when it is `summary.BETTER` times the first right one and the best
    baseline."""
    first, best = _first(attempts), best_of(attempts)
    if (
        first is None
        or best is None
        or best.proposal is None
        or best.proposal.verdict is not Verdict.FASTER
    ):
        return None
    bar = summary.BETTER * max(1.0, first.fitness or 0.0)
    return best if (best.fitness or 0.0) >= bar else None


def _first(attempts: Sequence[Attempt]) -> Attempt | None:
    """The first right one that was made of steps."""
    right = (
        a
        for a in attempts
        if a.fitness is not None and a.proposal and a.candidate and a.candidate.steps
    )
    return min(right, key=lambda attempt: attempt.number, default=None)


def seen_of(one: Opened, proposal: Proposal) -> MeasuredPlace:
    """Where a proposal of this job was measured."""
    around, inputs = one.bench.probe, one.capture.inputs
    return MeasuredPlace(
        device=one.bench.device,
        device_name=proposal.evaluation.device_name,
        architecture=around.capability if one.bench.device == "cuda" else None,
        inputs=inputs,
        layouts=_layouts(inputs),
        torch=around.torch,
        triton=around.triton,
        speedup=proposal.evaluation.speedup,
    )


# --- staging ------------------------------------------------------------------------------


def stage(
    lessons: Iterable[Lesson],
    library: SkillLibrary,
    book: Skillbook,
    inputs: Sequence[ArgSpec] = (),
) -> list[LearnedSkill]:
    """Stages each lesson as a skill, or keeps it as refused with the reason; lessons that are known
    already are passed over."""
    staged = []
    for lesson in lessons:
        known = _known_skills(library, book)
        if any(skill.name == lesson.draft.name for skill in known):
            continue
        papers = library.stage(lesson, next(_faults(lesson, known, inputs), ""))
        staged += [papers] if papers is not None else []
    return staged


def _known_skills(library: SkillLibrary, book: Skillbook) -> list[Skill]:
    """What a draft may repeat: all skills, and drafts; refused and retired ones, too."""
    mine = [one.skill for one in (*library.staged(), *library.shelved())]
    names = {skill.name for skill in mine}
    return [*mine, *(skill for skill in book.skills if skill.name not in names)]


def _faults(lesson: Lesson, known: Sequence[Skill], inputs: Sequence[ArgSpec]) -> Iterator[str]:
    names = {skill.name for skill in known}
    yield from summary_rule.faults(lesson.draft, lesson.instead_of)
    yield from summary.faults(lesson.draft, names)
    yield from admission.faults(lesson.draft, known, inputs, lesson.origin.qualname)


# --- at work ------------------------------------------------------------------------------


def count_usage(
    ranked: Sequence[Proposal], one: Opened, settings: Settings, report: Report
) -> None:
    """Counts what the verified skills of a job did, best first; those that stopped helping are
    retired."""
    used = {name for proposal in ranked if (name := skill_of(proposal))}
    if not used:
        return
    data_dir, hardware = Path(settings.data_dir), hardware_of(one.bench)
    usage = UsageStatistics(data_dir)
    usage.count(ranked, hardware)
    for found in usage.stats():
        reason = (
            helps_no_more(found) if found.skill in used and found.hardware == hardware else None
        )
        if reason is not None:
            _retire(SkillLibrary(data_dir), found.skill, reason, report)


def _retire(library: SkillLibrary, name: str, reason: str, report: Report) -> None:
    papers = library.current.get(name)
    if papers is None or papers.standing is not Standing.VERIFIED:
        return
    with contextlib.suppress(SkillError):  # the library cannot be written: the next job tries again
        library.retire(name, reason)
        report(Progress(phase="learn", message=f"the learned skill {name} was retired: {reason}"))


def _origin(proposal: Proposal, seen: MeasuredPlace, event: str) -> Origin:
    return Origin(
        event=event,
        fingerprint=proposal.fingerprint,
        qualname=proposal.qualname,
        hardware=f"cuda:{seen.architecture}" if seen.device == "cuda" else seen.device,
        device_name=seen.device_name,
        speedup=seen.speedup,
        proposal=proposal.id,
        created=now(),
    )


def _layouts(inputs: Sequence[ArgSpec]) -> tuple[str, ...]:
    tensors = [spec for spec in inputs if spec.shape is not None and math.prod(spec.shape) > 0]
    return tuple(sorted({conditions.layout(spec) for spec in tensors}))
