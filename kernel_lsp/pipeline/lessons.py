"""Kept rewrites become verified skills while nobody waits: queue, distill, verify, settle, tell.

    queue = LessonQueue(data_dir); queue.note(events)     when a rewrite is kept, or taken back
    news = await learn_once(pipeline, queue, kept, work)  when the device is idle, with consent

One call does one piece of work, so that whoever comes back to the machine waits for nothing: a
kept rewrite is distilled by the model of the settings (by rule it was drafted at once,
learning.py), or one draft is verified on other targets of the workspace. A piece that was cut off
goes on where it was. Not covered: when the machine is idle (server/jobs.py), what a verification
is (skill_validation)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_lsp.agents import backbones, feedback, summary
from kernel_lsp.errors import BackboneError, CaptureError, EvaluationError
from kernel_lsp.files import replace_file
from kernel_lsp.journal.converting import StoredProposal
from kernel_lsp.library import SkillLibrary, store
from kernel_lsp.library.store import Shelved
from kernel_lsp.pipeline import learning, skill_validation
from kernel_lsp.pipeline.deep import task_of
from kernel_lsp.pipeline.learning import KEPT, TAKEN_BACK
from kernel_lsp.pipeline.order import Pipeline
from kernel_lsp.pipeline.skill_validation.tasks import ValidationTask
from kernel_lsp.records import (
    Attempt,
    Event,
    Job,
    LearnedSkill,
    Move,
    Progress,
    Report,
    SearchJudgement,
    Standing,
    Verification,
)
from kernel_lsp.search.bandit import BanditArms
from kernel_lsp.search.fitness import fitness

if TYPE_CHECKING:
    from kernel_lsp.journal import Journal

FOLDER, QUEUE, TRIED = "lessons", "queue", "tried.json"
MAX_QUEUED = 200
"""The oldest go: a machine that is never idle must not collect for ever."""
MIN_TASKS = 3
"""As a verification asks for; with fewer other targets nothing is begun."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleWork:
    """What may be used for one piece of work."""

    targets: Sequence[ValidationTask] = ()
    """Of the workspace, whose code may run."""
    allowed_origin: str | None = None
    """The remote model that this folder's user has allowed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LessonNews:
    """What one piece of work came to."""

    line: str
    """For a status bar."""
    papers: LearnedSkill | None = None


class LessonQueue:
    """Kept rewrites that no model was asked about yet: a file each, named by the proposal."""

    def __init__(self, data_dir: Path) -> None:
        self._root = data_dir / FOLDER
        self._queue = self._root / QUEUE

    def note(self, events: Sequence[Event]) -> None:
        """Queues what was kept and drops what was taken back. Raises OSError."""
        for event in events:
            path = self._queue / f"{_file_name(event.proposal)}.json"
            if event.kind in KEPT and not path.exists():
                self._queue.mkdir(parents=True, exist_ok=True)
                entry = {"proposal": event.proposal, "since": event.time}
                replace_file(path, json.dumps(entry).encode())
            elif event.kind in TAKEN_BACK:
                path.unlink(missing_ok=True)
        for _, path in self._entries()[:-MAX_QUEUED]:
            path.unlink(missing_ok=True)

    def waiting(self) -> tuple[str, ...]:
        """Proposals, the oldest first; what cannot be read is passed over."""
        return tuple(name for name, _ in self._entries())

    def done(self, proposal: str) -> None:
        """Takes the proposal off the queue."""
        (self._queue / f"{_file_name(proposal)}.json").unlink(missing_ok=True)

    def tried(self, draft: str, targets: str) -> bool:
        """Whether the draft was verified on just these targets before."""
        return self._tried().get(draft) == targets

    def note_tried(self, draft: str, targets: str) -> None:
        """Notes for which targets a draft was tried, so that it is not tried for them again; a full
        disk is no error."""
        with contextlib.suppress(OSError):  # tried once more then, which its archives make cheap
            tried = self._tried() | {draft: targets}
            self._root.mkdir(parents=True, exist_ok=True)
            replace_file(self._root / TRIED, json.dumps(tried).encode())

    def _tried(self) -> dict[str, str]:
        try:
            tried = json.loads((self._root / TRIED).read_bytes())
        except (OSError, ValueError):
            return {}
        return {str(k): str(v) for k, v in tried.items()} if isinstance(tried, dict) else {}

    def _entries(self) -> list[tuple[str, Path]]:
        found: list[tuple[str, str, Path]] = []
        for path in self._queue.glob("*.json") if self._queue.is_dir() else ():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                entry = json.loads(path.read_bytes())
                found.append((str(entry["since"]), str(entry["proposal"]), path))
        return [(name, path) for _, name, path in sorted(found)]


async def learn_once(
    pipeline: Pipeline,
    queue: LessonQueue,
    kept: Callable[[str], Sequence[StoredProposal]],
    work: IdleWork,
    report: Report = lambda progress: None,
) -> LessonNews | None:
    """One piece of work; None: there is none. ``kept``: a proposal's id -> it, last, and before it
    the other proposals for its target, oldest first. Raises KernelLspError where nothing can be
    judged here."""
    if pipeline.settings.policy != "plan":
        for proposal in queue.waiting():
            found = await _distilled(pipeline, kept(proposal), work, report)
            queue.done(proposal)
            if found is not None:
                return found
    return await _verified(pipeline, queue, work, report)


def has_drafts(data_dir: Path) -> bool:
    """Whether anything may wait to be verified; looks at names alone."""
    library = SkillLibrary(data_dir)
    return any(True for _ in _drafts(library, reads=True))


def logged_for(journal: Journal, proposal: str) -> tuple[StoredProposal, ...]:
    """The proposal as it is logged, after earlier ones for the same text of its target; empty where
    it is not logged."""
    found = journal.proposals(proposal=proposal)[-1:]
    if not found:
        return ()
    (mine,) = found
    before = (
        one
        for one in journal.proposals()
        if (one.folder, one.path, one.proposal.fingerprint)
        == (mine.folder, mine.path, mine.proposal.fingerprint)
        and one.proposal.created < mine.proposal.created
    )
    return (*before, mine)


# --- distilling ---------------------------------------------------------------------------


async def _distilled(
    pipeline: Pipeline, known: Sequence[StoredProposal], work: IdleWork, report: Report
) -> LessonNews | None:
    """What the model drafts of a kept rewrite that clearly improved on what was suggested first.

    None: it did not, its text is not kept, or the model cannot be asked; then the rule's draft is
    all there is."""
    attempts = [_attempt(number, one) for number, one in enumerate(known)]
    found = summary.trigger(attempts)
    if not known or known[-1].reference is None or found is None or found[1] != attempts[-1]:
        return None
    first, best = found
    try:
        drafted = await _ask(pipeline, known[-1], first, best, work, report)
    except (BackboneError, CaptureError, EvaluationError) as error:
        report(Progress(phase="learn", message=f"no lesson was written down: {error}"))
        return None
    names = [papers.name for papers in drafted if papers.standing is Standing.STAGED]
    return LessonNews(line=f"learned: drafted {', '.join(names)}") if names else None


async def _ask(
    pipeline: Pipeline,
    kept: StoredProposal,
    first: Attempt,
    best: Attempt,
    work: IdleWork,
    report: Report,
) -> list[LearnedSkill]:
    settings = pipeline.settings
    job = Job(
        text=kept.reference or "",
        path=Path(kept.path).name,
        qualname=kept.proposal.qualname,
        device=settings.device,
        background=True,
    )
    async with pipeline.opened(job) as one:
        backbone = backbones.make(
            settings,
            python=one.bench.probe.python,
            allowed_origin=work.allowed_origin,
            data_dir=settings.data_dir,
        )
        try:
            info = await backbone.open(report)
            task = task_of(one, (), BanditArms(Path(settings.data_dir)))
            drafts, _, _ = await summary.distill(backbone, task, first, best, (), best.number)
        finally:
            await backbone.close()
        return learning.keep_lessons(one, (first, best), drafts, info.name, Path(settings.data_dir))


def _attempt(number: int, stored: StoredProposal) -> Attempt:
    """A judged proposal of a session as an attempt of a rollout."""
    proposal = stored.proposal
    return Attempt(
        number=number,
        move=Move.RESTART,
        proposer=proposal.candidate.proposer,
        proposal=proposal,
        complete=True,
        feedback=feedback.digest(SearchJudgement(proposal=proposal)),
        fitness=fitness(proposal.evaluation),
        turn=number + 1,
        rollout=0,
        created=proposal.created,
    )


# --- verifying ----------------------------------------------------------------------------


async def _verified(
    pipeline: Pipeline, queue: LessonQueue, work: IdleWork, report: Report
) -> LessonNews | None:
    library = SkillLibrary(Path(pipeline.settings.data_dir))
    for shelved in _drafts(library, pipeline.settings.policy != "plan"):
        targets = _targets_for(shelved, work.targets)
        digest = _digest(targets)
        if len(targets) < MIN_TASKS or queue.tried(shelved.papers.name, digest):
            continue
        verified = [s.skill for s in library.shelved() if s.papers.standing is Standing.VERIFIED]
        asked = skill_validation.VerificationRequest(
            tasks=(), targets=targets, allowed_origin=work.allowed_origin
        )
        try:
            found = await skill_validation.Validating(
                pipeline=pipeline, shelved=shelved, library=verified, asked=asked, report=report
            ).run()
        except EvaluationError as error:  # on these targets; on others it is tried again
            queue.note_tried(shelved.papers.name, digest)
            return LessonNews(line=f"{shelved.papers.name} could not be verified: {error}")
        papers = store.settle(library, shelved, found)
        queue.note_tried(shelved.papers.name, digest)
        return LessonNews(line=news_line(papers, found), papers=papers)
    return None


def _drafts(library: SkillLibrary, reads: bool) -> Iterator[Shelved]:
    """Those that wait; ones that are text only where a language model can read them."""
    for one in library.staged():
        waits = one.papers.standing is Standing.STAGED
        if waits and library.current.get(one.papers.name) is None and (one.skill.recipe or reads):
            yield one


def _targets_for(shelved: Shelved, targets: Sequence[ValidationTask]) -> tuple[ValidationTask, ...]:
    kernels = shelved.skill.scope == "triton"
    return tuple(task for task in targets if task.kernel == kernels)


def _digest(targets: Sequence[ValidationTask]) -> str:
    identities = [[str(one.path), one.qualname, one.stamp] for one in targets]
    return hashlib.sha256(json.dumps(identities).encode()).hexdigest()[:16]


def news_line(papers: LearnedSkill, found: Verification) -> str:
    """``learned fuse-rows-4 (1.12x [1.05, 1.20] on 4 other targets)``, or why not."""
    if found.accepted and found.uplift is not None:
        uplift = found.uplift
        mean, low, high = (math.exp(value) for value in (uplift.mean, uplift.low, uplift.high))
        where = f"on {uplift.tasks} other targets"
        return f"learned {papers.name} ({mean:.2f}x [{low:.2f}, {high:.2f}] {where})"
    state = "waits for more targets" if papers.standing is Standing.STAGED else papers.standing
    return f"{papers.name} {state}: {found.reason}"


def _file_name(proposal: str) -> str:
    return hashlib.sha256(proposal.encode("utf-8", "surrogatepass")).hexdigest()[:32]
