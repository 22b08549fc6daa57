"""A deeper search of one opened target: puts the parts together, and says at the end what it has
cost.

The judge is the quick search's own tournament, so a verdict means the same. Without a language
model that can be asked, what needs none goes on, and the summary says why. Not covered: how
anything is decided (search/), what a model reads (agents/)."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernel_lsp.agents import backbones, feedback
from kernel_lsp.agents.policy import PolicyAgent, Select
from kernel_lsp.cache import Cache
from kernel_lsp.config import Settings
from kernel_lsp.errors import BackboneError, SkillError
from kernel_lsp.files import keep_newest
from kernel_lsp.pipeline import learning
from kernel_lsp.pipeline.opened import MAX_MATCHES, JobBench, Opened
from kernel_lsp.pipeline.tournament import PARALLEL_JUDGEMENTS
from kernel_lsp.pipeline.turns import TakeTurn
from kernel_lsp.pipeline.workshop import EngineWorkshop
from kernel_lsp.records import (
    Attempt,
    Backbone,
    Candidate,
    EvalStatus,
    Json,
    ModelInfo,
    Move,
    MoveTally,
    Progress,
    Proposal,
    Proposer,
    Report,
    SearchJudge,
    SearchJudgement,
    SearchMode,
    SearchPlan,
    SearchSummary,
    SearchTask,
    Skill,
    SkillDraft,
    SkillMatch,
    Standing,
    StopReason,
    Strategy,
    Verdict,
    rank,
)
from kernel_lsp.search import attempts, bottleneck
from kernel_lsp.search.archive import SUFFIX, SqliteArchive
from kernel_lsp.search.bandit import BanditArms
from kernel_lsp.search.best import BestOf
from kernel_lsp.search.budget import SpentBudget
from kernel_lsp.search.evolution import Evolution
from kernel_lsp.search.ledger import MemoryArchive
from kernel_lsp.search.loop import SearchLoop
from kernel_lsp.search.proposers import ChainProposer, Mutate
from kernel_lsp.search.turns import TurnsStrategy, is_single
from kernel_lsp.search.workers import SearchWorkers

FOLDER = "searches"
MAX_ARCHIVES = 200
"""Of the user's own; one takes some 100 KB. Those not used for longest go, archives named by a
plan never."""
HURRIED = (StopReason.SECONDS, StopReason.GPU_SECONDS, StopReason.TOKENS)
"""Nothing more is asked after these, not even what was learned."""
_STRATEGIES: dict[SearchMode, Callable[[SearchPlan, int], Strategy]] = {
    SearchMode.BEST: lambda plan, seed: BestOf(seed),
    SearchMode.TURNS: TurnsStrategy,
    SearchMode.EVOLVE: lambda plan, seed: Evolution(seed),
}
MAX_SENT = 16
"""Proposals of a search that go back to the job, best first; all are in the archive."""


async def run(
    one: Opened,
    plan: SearchPlan,
    seeds: Sequence[Proposal],
    settings: Settings,
    report: Report,
    turn: TakeTurn,
) -> tuple[tuple[Proposal, ...], SearchSummary]:
    """What the search has found, best first, and its summary.

    ``turn`` is taken around every judgement. Raises ArchiveError, and EvaluationError when the
    target itself cannot be judged by. Cancelling the task ends it all; the archive stays, and the
    same call goes on there."""
    archive = SqliteArchive.open(_path(one, plan, settings), one.identity(), fresh=plan.fresh)
    try:
        deep = _Deep(
            one=one, plan=plan, settings=settings, report=report, turn=turn, archive=archive
        )
        return await deep.run(seeds)
    finally:
        archive.close()
        with contextlib.suppress(OSError):  # another process may do the same at this moment
            keep_newest(Path(settings.data_dir) / FOLDER, MAX_ARCHIVES, SUFFIX)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutsideModel:
    """A language model that somebody else runs, and how its rollout differs from a job's."""

    backbone: Backbone
    info: ModelInfo
    workshop: EngineWorkshop
    """Shared by all rollouts of the target: its engine takes one request at a time."""
    select: Select | None = None
    """None: the model is asked for skills itself."""
    skills: bool = True
    """False: the rollout is given none (the null scheme)."""
    judge: SearchJudge | None = None
    """None: the gate."""


async def roll(
    one: Opened,
    plan: SearchPlan,
    settings: Settings,
    archive: MemoryArchive,
    model: OutsideModel,
    turn: TakeTurn,
    report: Report = lambda progress: None,
) -> StopReason:
    """A job's deeper search with this model, attempt by attempt into ``archive``; what it teaches
    is drafted, too. Raises what `run` raises."""
    deep = _Deep(
        one=one,
        plan=plan,
        settings=settings,
        report=report,
        turn=turn,
        archive=archive,
        outside=model,
    )
    return await deep.search(())


@dataclass(frozen=True, kw_only=True)
class _Deep:
    one: Opened
    plan: SearchPlan
    settings: Settings
    report: Report
    turn: TakeTurn
    archive: MemoryArchive
    outside: OutsideModel | None = None
    notes: list[str] = field(default_factory=list)

    async def run(self, seeds: Sequence[Proposal]) -> tuple[tuple[Proposal, ...], SearchSummary]:
        """Search from these proposals: what is worth an offer, and what the search came to."""
        resumed = len(self.archive.attempts)
        stop = await self.search(seeds)
        return self._found(), self._summary(stop, resumed)

    async def search(self, seeds: Sequence[Proposal]) -> StopReason:
        """Search until something says stop; attempts of an earlier run in the archive are gone on
        from."""
        resumed = len(self.archive.attempts)
        attempts.enter(self.archive, seeds, self._digest)
        arms = BanditArms(Path(self.settings.data_dir))
        task = task_of(self.one, seeds, arms)
        for attempt in self.archive.attempts:
            self._learn(arms, task, attempt)
        async with contextlib.AsyncExitStack() as stack:
            model = await self._model(stack)
            return await self._searched(task, arms, model, resumed)

    async def _searched(
        self,
        task: SearchTask,
        arms: BanditArms,
        model: tuple[Backbone, ModelInfo] | None,
        resumed: int,
    ) -> StopReason:
        outside = self.outside
        workshop = (
            EngineWorkshop(self.one.engine, self.one.prepared)
            if outside is None
            else outside.workshop
        )
        order = functools.partial(
            arms.order, bottleneck=task.bottleneck, device=kind_of(self.one.bench)
        )
        begun = max((attempt.number for attempt in self.archive.attempts), default=-1) + 1
        agent = self._agent(model, workshop, order) if model else None
        loop = SearchLoop(
            task=task,
            strategy=_STRATEGIES[self.plan.mode](self.plan, self.archive.seed),
            proposers=(agent,) if agent else (),
            moves=self._moves(workshop, order),
            judge=outside.judge if outside and outside.judge else self._judge,
            archive=self.archive,
            budget=SpentBudget(limits=self.plan.budget, begun=begun),
            workers=self._workers(model[1] if model else None),
            report=self.report,
            digest=self._digest,
            recall=self._recall,
            learn=lambda attempt: self._learn(arms, task, attempt),
        )
        drafts: list[SkillDraft] = []
        try:
            stop = await loop.run()
            if agent and stop not in HURRIED and self.one.prepared.job.search is not None:
                for best, draft in await agent.lessons(task, self.archive.attempts[resumed:]):
                    taught = replace(best, cost=best.cost + draft.cost)
                    self.archive.add(taught, draft.exchanges, draft.drafts)
                    drafts.extend(draft.drafts)
        finally:
            self.notes.extend((*loop.notes, *(agent.notes if agent else ())))
        self._keep_lessons(drafts, model[1].name if model else "")
        return stop

    def _agent(
        self,
        model: tuple[Backbone, ModelInfo],
        workshop: EngineWorkshop,
        order: Callable[[Sequence[str]], list[str]],
    ) -> PolicyAgent:
        outside = self.outside
        if outside is None:
            return PolicyAgent(model[0], workshop, info=model[1], order=order)
        return PolicyAgent(
            model[0],
            workshop,
            outside.select,
            info=model[1],
            order=order,
            without=lambda rollout: not outside.skills,
        )

    def _keep_lessons(self, drafts: Sequence[SkillDraft], writer: str) -> None:
        """As drafts of skills; they reach no job before they were verified."""
        data_dir = Path(self.settings.data_dir)
        try:
            staged = learning.keep_lessons(
                self.one, self.archive.attempts, drafts, writer, data_dir
            )
        except SkillError as error:
            self.notes.append(f"nothing was learned of this search: {error}")
            return
        names = [papers.name for papers in staged if papers.standing is Standing.STAGED]
        if names:
            self.report(
                Progress(phase="learn", message=f"drafted {', '.join(names)} from this search")
            )

    # --- the parts --------------------------------------------------------------------------

    async def _model(self, stack: contextlib.AsyncExitStack) -> tuple[Backbone, ModelInfo] | None:
        """Open until the stack ends; None: nobody is asked, and a note says why if that was wished
        for."""
        if self.outside is not None:
            return self.outside.backbone, self.outside.info
        settings, job = self.settings, self.one.prepared.job
        if job.background or (settings.policy == "plan" and self.plan.mode is SearchMode.EVOLVE):
            return None
        try:
            backbone = backbones.make(
                settings,
                python=self.one.bench.probe.python,
                allowed_origin=job.allowed_origin,
                data_dir=settings.data_dir,
            )
            stack.push_async_callback(backbone.close)
            return backbone, await backbone.open(self.report)
        except BackboneError as error:
            self.notes.append(f"no language model took part: {error}")
            self.report(Progress(phase="search", message=self.notes[-1]))
            return None

    def _moves(
        self, workshop: EngineWorkshop, order: Callable[[Sequence[str]], list[str]]
    ) -> dict[Move, Proposer]:
        """Beside a model that works alone nothing else proposes: its results compare with
        published ones."""
        if self.plan.mode is not SearchMode.EVOLVE:
            return {}
        return {
            Move.MUTATE: Mutate(workshop, self.archive),
            Move.CHAIN: ChainProposer(workshop, order, self.archive),
        }

    def _workers(self, info: ModelInfo | None) -> SearchWorkers:
        device = self.one.bench.device
        samples = min(self.settings.model_samples, info.max_in_flight) if info else 1
        if self.plan.mode is SearchMode.TURNS and is_single(self.plan):
            samples = 1
        return SearchWorkers(
            judges=PARALLEL_JUDGEMENTS.get(device, 1), samples=samples, apart=disturbs(info, device)
        )

    async def _judge(self, candidate: Candidate, *, full: bool) -> SearchJudgement:
        async with self.turn():
            return await self.one.tournament.judged(candidate, full=full)

    async def _recall(
        self, attempt: Attempt, candidate: Candidate, *, full: bool
    ) -> SearchJudgement | None:
        return self.one.tournament.recalled(candidate, full=full)

    def _digest(self, judged: SearchJudgement) -> Json:
        return feedback.digest(judged, self.settings.threshold)

    def _learn(self, arms: BanditArms, task: SearchTask, attempt: Attempt) -> None:
        arms.learn(attempt, task.bottleneck, kind_of(self.one.bench))

    # --- the end ----------------------------------------------------------------------------

    def _found(self) -> tuple[Proposal, ...]:
        made = (a.proposal for a in self.archive.attempts if a.proposal and a.move is not Move.SEED)
        return tuple(sorted(made, key=rank))[:MAX_SENT]

    def _summary(self, stop: StopReason, resumed: int) -> SearchSummary:
        known = self.archive.attempts
        moves = tally(known)
        return SearchSummary(
            mode=self.plan.mode,
            stop=stop,
            attempts=len(known),
            resumed=resumed,
            cost=self.archive.cost,
            gains=gains(known),
            moves={str(move): found for move, found in moves.items()},
            archive=str(_path(self.one, self.plan, self.settings)),
            notes=(*self.notes, *self.archive.problems),
        )


def task_of(one: Opened, seeds: Sequence[Proposal], arms: BanditArms) -> SearchTask:
    """What proposers may know of the target; ``seeds`` tell what it takes as it is."""
    capture, bench = one.capture, one.bench
    timed = [p.evaluation for p in seeds if p.evaluation.timings]
    names = [p.evaluation.device_name for p in seeds if p.evaluation.device_name]
    workload = one.prepared.workload
    if workload.inputs is None:  # shapes are given, how get_inputs makes them is not
        workload = replace(workload, inputs=capture.inputs)
    task = SearchTask(
        qualname=one.prepared.target.qualname,
        fingerprint=one.prepared.target.fingerprint,
        program=one.prepared.program,
        workload=workload,
        device=bench.device,
        device_name=names[0] if names else bench.probe.device,
        triton=bench.device == "cuda" and bench.probe.triton is not None,
        words=capture.words,
        sites=one.sites,
        read_bytes=capture.read_bytes,
        written_bytes=capture.written_bytes,
    )
    task = replace(task, bottleneck=bottleneck.of(task, timed[0] if timed else None))
    matches = _matches(one, task, arms)
    skills = {skill.name: skill for skill in bench.skills.skills}
    return replace(task, matches=matches, skills=tuple(skills[match.skill] for match in matches))


def disturbs(info: ModelInfo | None, device: str) -> bool:
    """Whether generating is in the way of timing: on the GPU that judges, or on this machine where
    its CPU does (a model on the same cores made a right rewrite's times look impossible: 0.14 ms,
    8.2 seen)."""
    if info is None:
        return False
    if device == "cuda":
        return info.on_measured_gpu
    return info.backbone != "plan" and not info.remote


def kind_of(bench: JobBench) -> str:
    """The name of the device under which the bandit keeps what it learns."""
    return f"cuda:{bench.probe.capability}" if bench.device == "cuda" else bench.device


def _matches(one: Opened, task: SearchTask, arms: BanditArms) -> tuple[SkillMatch, ...]:
    """The recalled skills; where the words recall too few, what has paid for such targets."""
    found = list(one.matches[:MAX_MATCHES])
    known = {match.skill for match in found}
    others = [s.name for s in one.bench.skills.skills if _serves(s, task) and s.name not in known]
    more = arms.order(others, task.bottleneck, kind_of(one.bench))[: MAX_MATCHES - len(found)]
    return (*found, *(SkillMatch(skill=name, score=0.0, words=()) for name in more))


def tally(known: Sequence[Attempt]) -> dict[Move, MoveTally]:
    """How every kind of move did. Only full judgements improve anything; the target itself is 1."""
    found: dict[Move, MoveTally] = {}
    for attempt, gained in _improvements(known):
        before = found.get(attempt.move, MoveTally())
        passed = (
            attempt.proposal is not None and attempt.proposal.evaluation.status is EvalStatus.PASSED
        )
        found[attempt.move] = MoveTally(
            tries=before.tries + 1,
            right=before.right + int(passed),
            improved=before.improved + int(gained > 0),
            gain=before.gain + gained,
        )
    return found


def gains(known: Sequence[Attempt]) -> int:
    """Verified candidates of this search that were faster than everything before."""
    return sum(
        1
        for attempt, gained in _improvements(known)
        if gained > 0 and attempt.move is not Move.SEED and _is_verified(attempt)
    )


def _improvements(known: Sequence[Attempt]) -> list[tuple[Attempt, float]]:
    """Every attempt with ln(its speedup / the best before it), 0 where that is no gain."""
    found, best = [], 1.0
    for attempt in known:
        better = attempt.complete and attempt.fitness is not None and attempt.fitness > best
        found.append((attempt, math.log((attempt.fitness or best) / best) if better else 0.0))
        best = (attempt.fitness or best) if better else best
    return found


def _is_verified(attempt: Attempt) -> bool:
    return attempt.proposal is not None and attempt.proposal.verdict is Verdict.FASTER


def _serves(skill: Skill, task: SearchTask) -> bool:
    """Advice on Triton kernels is of no use where none is written."""
    return task.triton or skill.scope != "triton"


def _path(one: Opened, plan: SearchPlan, settings: Settings) -> Path:
    if plan.archive is not None:
        return Path(plan.archive)
    return Path(settings.data_dir) / FOLDER / f"{Cache.key(**one.identity())}{SUFFIX}"
