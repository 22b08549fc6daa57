"""A rollout turned inside out: the product's own search, asked for one question after the other.

    async with open_rollouts(pipeline, job) as rollouts:
        episode = rollouts.begin(info, plan_of(turns=3), seed=7)
        moment = await episode.reset()                 # the first question
        while moment.prompt is not None:
            moment = await episode.step(reply)         # what that led to, and the next question

Selection, prompts, tools, parsing, repairs, feedback, judging and what is drafted at the end are
those of a job with a language model (deep.py), because they are that code: it waits in a task of
its own until somebody else has answered. For trainers, which bring their own model. Not covered:
rewards (the trainer's), and what samples."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernel_lsp.agents import feedback, selection
from kernel_lsp.agents.policy import Select
from kernel_lsp.agents.sizing import BYTES_PER_TOKEN, size
from kernel_lsp.config import Settings
from kernel_lsp.pipeline import deep
from kernel_lsp.pipeline.deep import OutsideModel
from kernel_lsp.pipeline.opened import Opened
from kernel_lsp.pipeline.order import Pipeline
from kernel_lsp.pipeline.workshop import EngineWorkshop
from kernel_lsp.records import (
    Attempt,
    Candidate,
    Context,
    Cost,
    Exchange,
    Job,
    ModelInfo,
    Move,
    OnText,
    Prompt,
    ProposedDraft,
    Reply,
    Report,
    SearchBudget,
    SearchJudge,
    SearchMode,
    SearchPlan,
    SearchTask,
    SkillDraft,
    Step,
    StopReason,
)
from kernel_lsp.search import attempts
from kernel_lsp.search.bandit import BanditArms
from kernel_lsp.search.ledger import MemoryArchive

ENDLESS = 10_000
"""Judged candidates without a better best: an episode ends by its turns, not by stagnation."""


class EpisodeOver(RuntimeError):
    """A reply came when nothing was asked: a mistake of the caller."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Where an episode stands after a reply."""

    prompt: Prompt | None
    """The next question; None: the episode is over."""
    agent: str = ""
    """Who asks: selection, policy or summary."""
    attempts: tuple[Attempt, ...] = ()
    """Finished by the last reply: judged, or refused with a complaint."""
    stop: StopReason | None = None
    """Why the search ended; None: it goes on, or chose skills alone."""


class EpisodeArchive(MemoryArchive):
    """Keeps what was said, too."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self.exchanges: dict[int, list[Exchange]] = {}
        self.drafts: list[SkillDraft] = []

    def begin(
        self,
        attempt: Attempt,
        candidate: Candidate,
        exchanges: Sequence[Exchange] = (),
        drafts: Sequence[SkillDraft] = (),
    ) -> Attempt | None:
        """Begins an attempt as `MemoryArchive.begin` does; what was said on the way is noted for
        the episode."""
        earlier = super().begin(attempt, candidate)
        if earlier is None:
            self._note(attempt, exchanges, drafts)
        return earlier

    def add(
        self,
        attempt: Attempt,
        exchanges: Sequence[Exchange] = (),
        drafts: Sequence[SkillDraft] = (),
    ) -> None:
        """Adds an attempt as `MemoryArchive.add` does; what was said on the way is noted for the
        episode."""
        super().add(attempt)
        self._note(attempt, exchanges, drafts)

    def _note(
        self, attempt: Attempt, exchanges: Sequence[Exchange], drafts: Sequence[SkillDraft]
    ) -> None:
        self.exchanges.setdefault(attempt.number, []).extend(exchanges)
        self.drafts.extend(drafts)


class _Port:
    """A `Backbone` whose replies come from outside."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self.asked: asyncio.Queue[tuple[Prompt, asyncio.Future[Reply]]] = asyncio.Queue()

    async def open(self, report: Report) -> ModelInfo:
        """What the trainer says of its model."""
        return self._info

    async def count(self, prompt: Prompt) -> int:
        """Tokens of the prompt, estimated from its bytes."""
        return math.ceil(sum(size(m.text) for m in prompt.messages) / BYTES_PER_TOKEN)

    async def reply(self, prompt: Prompt, on_text: OnText | None = None) -> Reply:
        """The reply that the trainer puts in, after it was handed the prompt."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        await self.asked.put((prompt, answer))
        return await answer

    async def close(self) -> None:
        """There is nothing to end."""


@dataclass(kw_only=True)
class Episode:
    """One rollout; `close` it, also when it is over."""

    search: Callable[[], Awaitable[StopReason | None]]
    port: _Port
    archive: EpisodeArchive
    reported: int = 0
    """Attempts of the archive that a moment has reported, or that were there before."""
    _task: asyncio.Task[StopReason | None] | None = field(default=None, init=False)
    _waiting: asyncio.Future[Reply] | None = field(default=None, init=False)

    async def reset(self) -> Moment:
        """Begin, once. Raises what judging raises: EvaluationError, CaptureError."""
        if self._task is not None:
            raise EpisodeOver("an episode begins once: begin another one")
        self._task = asyncio.ensure_future(self.search())
        return await self._next()

    async def step(self, reply: Reply) -> Moment:
        """The model's answer to the last question; raises what `reset` does."""
        if self._waiting is None:
            raise EpisodeOver("nothing was asked: the episode is over, or was not begun")
        self._waiting.set_result(reply)
        self._waiting = None
        return await self._next()

    async def close(self) -> None:
        """End it, with whatever is being judged."""
        self._waiting = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _next(self) -> Moment:
        assert self._task is not None
        asking = asyncio.ensure_future(self.port.asked.get())
        await asyncio.wait([self._task, asking], return_when=asyncio.FIRST_COMPLETED)
        fresh = self._fresh()
        if not asking.done():
            asking.cancel()
            return Moment(prompt=None, attempts=fresh, stop=self._task.result())
        prompt, self._waiting = asking.result()
        return Moment(prompt=prompt, agent=agent_of(prompt), attempts=fresh)

    def _fresh(self) -> tuple[Attempt, ...]:
        known = tuple(self.archive.attempts)
        found, self.reported = known[self.reported :], len(known)
        return found


def agent_of(prompt: Prompt) -> str:
    """The agent whose question it is, by what it offers to call."""
    by_tool = {"select_skills": "selection", "update_skill_library": "summary"}
    return by_tool.get(prompt.tools[0].name if prompt.tools else "", "policy")


@dataclass(frozen=True, kw_only=True)
class TargetRollouts:
    """Episodes of one opened target, as many at a time as one likes."""

    one: Opened
    settings: Settings
    workshop: EngineWorkshop
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def begin(
        self,
        info: ModelInfo,
        plan: SearchPlan,
        *,
        seed: int,
        skills: bool = True,
        select: Select | None = None,
        judge: SearchJudge | None = None,
        parent: Attempt | None = None,
    ) -> Episode:
        """A new episode of the target. ``info``: of the model that answers (its context decides
        what fits). ``plan``: a job's (`plan_of` makes one). ``skills`` false: the null scheme.
        ``select``: who chooses skills instead of the model (`chosen_before`). ``judge``: None is
        the gate. ``parent``: what the rollout goes on from (`judge_parent`), which is none of the
        plan's turns."""
        port, archive = _Port(info), EpisodeArchive(seed)
        if parent is not None:
            archive.add(parent)
            plan = _with_parent(plan)
        model = OutsideModel(
            backbone=port,
            info=info,
            workshop=self.workshop,
            select=select,
            skills=skills,
            judge=judge,
        )

        async def search() -> StopReason | None:
            return await deep.roll(self.one, plan, self.settings, archive, model, self._in_turn)

        return Episode(search=search, port=port, archive=archive, reported=len(archive.attempts))

    async def judge_parent(self, steps: Sequence[Step], code: str | None) -> Attempt:
        """A program from which others start: made anew, and judged in full here and now, because
        a stored speedup is another clock's. Raises RewriteError, EvaluationError."""
        made = (
            await self.workshop.apply(steps)
            if code is None
            else await self.workshop.write(code, None)
        )
        async with self.turn:
            found = await self.one.tournament.judged(made, full=True)
        context = Context(number=0, seed=0, move=Move.RESTART, rollout=0, turn=1)
        begun = attempts.begin_attempt("stored", context, ProposedDraft(candidate=made))
        return attempts.finish_attempt(
            begun,
            found,
            lambda judged: feedback.digest(judged, self.settings.threshold),
            full=True,
            seconds=0.0,
            gpu=self.one.bench.device == "cuda",
        )

    def begin_selection(self, info: ModelInfo, *, seed: int) -> Episode:
        """The selection agent's question alone; its answer is the archive's only exchange."""
        port, archive = _Port(info), EpisodeArchive(seed)
        task = deep.task_of(self.one, (), BanditArms(Path(self.settings.data_dir)))

        async def search() -> StopReason | None:
            _, exchange, _ = await selection.select(port, task, seed)
            archive.exchanges[0] = [exchange]
            return None

        return Episode(search=search, port=port, archive=archive)

    @contextlib.asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        async with self.turn:
            yield


def plan_of(turns: int) -> SearchPlan:
    """One rollout of so many turns; a reply that is of no use is one of them."""
    budget = SearchBudget(candidates=turns, attempts=turns, seconds=None, stagnation=ENDLESS)
    return SearchPlan(mode=SearchMode.TURNS, budget=budget, turns=turns)


def _with_parent(plan: SearchPlan) -> SearchPlan:
    """With room for the attempt that is judged already."""
    limits = plan.budget
    attempts_ = None if limits.attempts is None else limits.attempts + 1
    budget = replace(limits, candidates=limits.candidates + 1, attempts=attempts_)
    return replace(plan, budget=budget, turns=plan.turns + 1)


def chosen_before(exchange: Exchange) -> Select:
    """Skills that a selection episode has chosen, for all rollouts of its scheme."""
    entries = (one["name"] for c in exchange.parsed.calls for one in c.arguments["selected_skills"])
    names = tuple(dict.fromkeys(entries))

    async def select(task: SearchTask, seed: int) -> tuple[tuple[str, ...], Exchange, Cost]:
        return names, exchange, Cost()

    return select


@contextlib.asynccontextmanager
async def open_rollouts(
    pipeline: Pipeline, job: Job, report: Report = lambda progress: None
) -> AsyncIterator[TargetRollouts]:
    """The job's target, opened as a job opens it. Raises KernelLspError."""
    asked = replace(job, search=job.search or SearchPlan(mode=SearchMode.TURNS))
    async with pipeline.opened(asked, report) as one:
        workshop = EngineWorkshop(one.engine, one.prepared)
        yield TargetRollouts(one=one, settings=pipeline.settings, workshop=workshop)
