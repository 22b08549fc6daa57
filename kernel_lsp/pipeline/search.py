"""The best of many candidates for one target: compared cheaply, judged in full where it matters.

The planner's first course is judged in full at once (on a GPU), so that something verified is there soon.
Beside that one process compares all courses and then, step by step, the parameters of the best one, the most
valuable step first (coordinate descent). What won there is judged in full like anything else, and only that
number counts. A winner that is rejected is followed by the next; one whose values were wrong takes everything
of the same or a coarser precision class with it. The search ends when nothing that is left looks better than
what passed. Without a comparison (the process was lost) the tournament's quick judgements take its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from kernel_lsp.agents.plan import NAME, Course
from kernel_lsp.errors import EvaluationError, RewriteError
from kernel_lsp.evaluator.tuning import Race, Tuner, TuneRequest, TunerLost, Variant
from kernel_lsp.pipeline.known import Known
from kernel_lsp.pipeline.tournament import LOOKS_BETTER, Tournament, rank
from kernel_lsp.records import Candidate, EvalStatus, Proposal, Site, Step, Verdict
from kernel_lsp.rewrite.client import Engine

OpenTuner = Callable[[TuneRequest], AbstractAsyncContextManager[Tuner]]
MOST_VARIANTS = {"cuda": 16, "cpu": 6}
"""In one comparison. On 16 cores as many Triton kernels compile in the time of two."""
MOST_RACES = 4
PLAN_S = 4.0
"""Chains of a large model take seconds to write down; the promising ones come first."""
TUNE_S = {"cuda": 8.0, "cpu": 8.0}
"""Seconds after which no further step's parameters are searched."""
COMPILER = "torch.compile("
MOST_SHORTER = 4
"""Courses with one step less in one comparison."""
MOST_IN_FULL = 4
PRECISION = "precision"
"""The parameter whose choices are classes of accuracy."""
CLASSES = ("ieee", "native", "tf32x3", "bf16x6", "bf16x3", "tf32", "fp16", "bf16")
"""The safest first. A skill's own name for a class counts by its place among the choices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """One point of the search: a course with parameters."""

    candidate: Candidate
    course: Course
    steps: tuple[Step, ...]
    complete: bool
    """False: it was made for a comparison and has to be made again before it is judged."""


@dataclass(kw_only=True)
class Search:
    """All candidates of one job."""

    tournament: Tournament
    engine: Engine
    known: Known
    tuner: OpenTuner
    """`Gate.tuner`, with the report bound."""
    device: str
    budget: int
    _contestants: dict[str, Contestant] = field(default_factory=dict)
    """By the candidate's id."""
    _searched: set[str] = field(default_factory=set)
    """Sites whose parameters were compared."""

    async def run(self, courses: AsyncIterator[Course]) -> tuple[Proposal, ...]:
        """Every candidate that was judged, best first; none when there is no course."""
        deadline = self.tournament.deadline()
        first = await anext(courses, None)
        if first is None:
            return ()
        judging: dict[str, asyncio.Task[Proposal]] = {}
        try:
            if self.device == "cuda" and self.budget > 1:
                judging[first.candidate.id] = self._begin(first.candidate)
            field_ = await _in_time(first, courses)
            race = await self._compared(field_)
            if race is not None and judging:
                await self._go_ahead(race, first, judging)
            done = {name: await task for name, task in judging.items()}
        finally:
            for task in judging.values():
                task.cancel()
            await asyncio.gather(*judging.values(), return_exceptions=True)
        if race is not None:
            return await self._judged(race, done, deadline)
        judged = list(done.values()) or [await self.tournament.in_full(first.candidate)]
        return await self.tournament.among(judged, [c.candidate for c in field_[1:]], deadline)

    def _begin(self, candidate: Candidate) -> asyncio.Task[Proposal]:
        return asyncio.create_task(self.tournament.in_full(candidate))

    async def _go_ahead(self, race: Race, first: Course, judging: dict[str, asyncio.Task[Proposal]]) -> None:
        """Judge what won the race while the first course still is being judged, unless its
        class of precision is coarser: then the verdict on the first tells whether to try."""
        best, begun = self._contestants[race.order[0]], self._contestants[first.candidate.id]
        bar, mine, theirs = race.speedup(first.candidate.id), _classes(best), _classes(begun)
        coarser = any(mine[name] > theirs[name] for name in mine.keys() & theirs.keys())
        if best is begun or coarser or race.speedup(race.order[0]) <= max(1.0, LOOKS_BETTER * bar):
            return
        if made := await self._made(best):
            judging[race.order[0]] = self._begin(made)

    # --- comparing -----------------------------------------------------------------------

    async def _compared(self, courses: Sequence[Course]) -> Race | None:
        """None when there is nothing to compare, or nobody who can."""
        for course in courses:
            self._add(
                Contestant(candidate=course.candidate, course=course, steps=course.steps, complete=True)
            )
        racing = [c for c in self._contestants.values() if self._can_run(c.candidate)]
        if len(racing) < 2 and not any(contestant.course.places() for contestant in racing):
            return None
        job = self.tournament.prepared
        triton = any(contestant.candidate.uses_triton for contestant in racing)
        request = TuneRequest(
            reference=job.program,
            workload=job.workload,
            device=self.device,
            python=self.tournament.probe.python,
            uses_triton=triton,
        )
        with contextlib.suppress(EvaluationError):  # it only saves time: without it everything is judged
            async with self.tuner(request) as tuner:
                race = await self._raced(tuner, racing)
                return race if race.order else None
        return None

    def _can_run(self, candidate: Candidate) -> bool:
        """Whether it can be compared. What calls torch.compile takes up to minutes at its first call."""
        compiles = COMPILER in candidate.program and COMPILER not in self.tournament.prepared.program.source
        return not compiles and (self.device == "cuda" or not candidate.uses_triton)

    async def _raced(self, tuner: Tuner, racing: list[Contestant]) -> Race:
        end = time.monotonic() + TUNE_S[self.device]
        race = await self._race(tuner, racing, racing[0])
        with contextlib.suppress(TunerLost):  # what was found before counts
            for _ in range(MOST_RACES - 1):
                if not race.order or time.monotonic() > end:
                    break
                best = self._contestants[race.order[0]]
                before = len(self._searched)
                race = await self._race(tuner, [best], best)
                if len(self._searched) == before:
                    break
        return race

    async def _race(self, tuner: Tuner, known: list[Contestant], center: Contestant) -> Race:
        """These, and other parameters for one step of ``center``."""
        what, variants = await self._variants(center)
        if not variants and len(known) < 2:
            return tuner.known
        return await tuner.race([_variant(c) for c in (*known, *variants)], what)

    async def _variants(self, center: Contestant) -> tuple[str, list[Contestant]]:
        """(name of the skill, variants) of the most valuable step whose parameters nobody knows yet."""
        for place in center.course.places():
            site = center.course.sites[place]
            if site.key in self._searched or self.known.best(site) is not None:
                continue
            self._searched.add(site.key)
            with contextlib.suppress(RewriteError):
                made = await self.engine.variants(center.steps, place, MOST_VARIANTS[self.device])
                others = [replace(center, candidate=c, steps=c.steps, complete=False) for c in made[1:]]
                shorter = await self._without(center, place)
                return site.skill, [self._add(other) for other in (*others, *shorter)]
        return "rewrites", []

    async def _without(self, center: Contestant, tuned: int) -> list[Contestant]:
        """The course without this step, and without each that has no parameters: one may do harm."""
        course, found = center.course, []
        places = [p for p in range(len(course.sites)) if p == tuned or p not in course.places()]
        for place in places[:MOST_SHORTER] if len(course.sites) > 1 else []:
            sites = course.sites[:place] + course.sites[place + 1 :]
            steps = center.steps[:place] + center.steps[place + 1 :]
            with contextlib.suppress(RewriteError):  # a later step needs it
                made = replace(await self.engine.make(steps), proposer=NAME)
                shorter = Course(candidate=made, sites=sites, steps=steps)
                found.append(Contestant(candidate=made, course=shorter, steps=steps, complete=True))
        return found

    def _add(self, contestant: Contestant) -> Contestant:
        return self._contestants.setdefault(contestant.candidate.id, contestant)

    # --- judging -------------------------------------------------------------------------

    async def _judged(self, race: Race, done: dict[str, Proposal], deadline: float) -> tuple[Proposal, ...]:
        """The race's order, judged in full until nothing that is left looks better."""
        unmeasured = [n for n in self._contestants if n not in race.order and n not in race.dropped]
        for name in (*race.order, *unmeasured):
            contestant = self._contestants[name]
            if len(done) >= min(MOST_IN_FULL, self.budget) or time.monotonic() > deadline:
                break
            if name in done or (done and not self._promising(race, name, done)):
                continue
            made = await self._made(contestant)
            if made is not None and made.id not in {p.candidate.id for p in done.values()}:
                done[name] = await self.tournament.in_full(made)
        self._remember(done)
        return tuple(sorted(done.values(), key=rank))

    def _promising(self, race: Race, name: str, done: dict[str, Proposal]) -> bool:
        """Whether it may still be offered instead of what was judged already."""
        contestant = self._contestants[name]
        if any(_coarser(contestant, self._contestants[n]) for n, p in done.items() if _wrong(p)):
            return False
        if name not in race.median_ms:
            return all(proposal.verdict is not Verdict.FASTER for proposal in done.values())
        passed = (n for n, p in done.items() if p.evaluation.status is EvalStatus.PASSED)
        bar = max((race.speedup(n) for n in passed), default=1.0)
        return race.speedup(name) > max(1.0, bar * LOOKS_BETTER)

    async def _made(self, contestant: Contestant) -> Candidate | None:
        """As it would be offered; None when the engine takes it back."""
        if contestant.complete:
            return contestant.candidate
        with contextlib.suppress(RewriteError):
            return replace(await self.engine.make(contestant.steps), proposer=NAME)
        return None

    def _remember(self, done: dict[str, Proposal]) -> None:
        """What won, for every step whose parameters were searched here."""
        passed = [n for n, p in done.items() if p.evaluation.status is EvalStatus.PASSED]
        if not passed:
            return
        best = self._contestants[min(passed, key=lambda n: rank(done[n]))]
        for place in best.course.places():
            if best.course.sites[place].key in self._searched:
                self.known.keep(best.course.sites[place], best.steps[place].parameters)


async def _in_time(first: Course, courses: AsyncIterator[Course]) -> list[Course]:
    """The first and the next, and further ones while their making takes no longer than PLAN_S."""
    found, end = [first], time.monotonic() + PLAN_S
    async for course in courses:
        found.append(course)
        if time.monotonic() > end:
            break
    return found


def _variant(contestant: Contestant) -> Variant:
    made = contestant.candidate
    return Variant(name=made.id, source=made.program, entry=made.entry)


def _wrong(proposal: Proposal) -> bool:
    return proposal.evaluation.status is EvalStatus.WRONG_RESULT


def _coarser(contestant: Contestant, refused: Contestant) -> bool:
    """Whether each of its steps that has a precision stood in the refused one, in no coarser class there."""
    mine, theirs = _classes(contestant), _classes(refused)
    return bool(mine) and all(name in theirs and mine[name] >= theirs[name] for name in mine)


def _classes(contestant: Contestant) -> dict[str, int]:
    """Site -> how coarse its step is, of the steps with a choice of precision."""
    pairs = zip(contestant.course.sites, contestant.steps, strict=True)
    return {site.key: _rank_of(site, step) for site, step in pairs if PRECISION in site.parameters}


def _rank_of(site: Site, step: Step) -> int:
    choices = site.parameters[PRECISION]
    order = CLASSES if set(choices) <= set(CLASSES) else choices
    return order.index(step.parameters.get(PRECISION, choices[0]))
