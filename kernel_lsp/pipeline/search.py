"""The best of many candidates for one target: compared cheaply, judged in full where it matters.

The planner's first plan is judged in full at once, so that something verified is there soon.
Beside that (after it on a CPU, where they would disturb each other) one process compares all
plans and then, step by step, the parameters of the best one, the most valuable step first
(coordinate descent); a planner that learns from measurements is asked for one more plan after
the first race. On a GPU, whatever clearly leads after the first of these races is judged in full
while the others go on; a first plan that has hardly gained anything in them is not timed any
more then: it waits until the rest has failed. One that has is verified first, because somebody
waits. What won at last is judged in full like anything else, and only that number counts. A winner
that is rejected is followed by the next; one whose values were wrong takes everything of the same
or a coarser precision class with it. The search ends when nothing that is left looks better than
what passed, or fast enough for the baselines that the first full judgement has shown. Without a
comparison (the process was lost) the tournament's quick judgements take its place."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from kernel_lsp import phases
from kernel_lsp.agents.plan import RankedPlan
from kernel_lsp.errors import EvaluationError, RewriteError, Withdrawn
from kernel_lsp.evaluator.tuning import Race, TunedVariant, TunerClient, TuneRequest, TunerLost
from kernel_lsp.pipeline import accuracy
from kernel_lsp.pipeline.known import KnownWinners
from kernel_lsp.pipeline.tournament import Tournament
from kernel_lsp.records import (
    COMPILE,
    EAGER,
    TIE,
    Candidate,
    EvalStatus,
    Proposal,
    Step,
    Verdict,
    rank,
)
from kernel_lsp.rewrite.client import Engine
from kernel_lsp.search.fitness import LOOKS_BETTER

OpenTuner = Callable[[TuneRequest], AbstractAsyncContextManager[TunerClient]]
RankAgain = Callable[[RankedPlan, float | None], Awaitable[RankedPlan | None]]
"""What to try next, when a plan's speedup over the original is known (None: it does not run)."""
MAX_VARIANTS = {"cuda": 16, "cpu": 6}
"""In one comparison. On 16 cores as many Triton kernels compile in the time of two."""
MAX_RACES = 4
PLAN_S = 4.0
"""Chains of a large model take seconds to write down; the promising ones come first."""
TUNE_S = {"cuda": 8.0, "cpu": 8.0}
"""Seconds of its own after which no further step's parameters are searched: those in which it
waited for a turn at the device do not count, else a second job beside it would cost the first one
its best parameters."""
COMPILER = "torch.compile("
MAX_SHORTER = 4
"""Plans with one step less in one comparison."""
MAX_IN_FULL = 4
FAR_AHEAD, LITTLE = 1.15, 1.1
"""Times the speedup of another in a race, and what that one gains over the original at most: then
it is not timed, because it can hardly be offered, let alone be the best."""
HOPELESS = 1.0
"""Estimated speedup over the best baseline below which nothing more is judged. An offer needs 1.05
(the threshold) and races scatter by 3 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """One point of the search: a plan with parameters."""

    candidate: Candidate
    ranked_plan: RankedPlan
    steps: tuple[Step, ...]
    complete: bool
    """False: it was made for a comparison and has to be made again before it is judged."""

    @property
    def ranks(self) -> accuracy.Ranks:
        """Site's key -> place of its precision among those that the site allows
        (`accuracy.ranks`)."""
        return accuracy.ranks(self.ranked_plan.sites, self.steps)


@dataclass(kw_only=True)
class TargetSearch:
    """All candidates of one job."""

    tournament: Tournament
    engine: Engine
    known: KnownWinners
    tuner: OpenTuner
    """`Gate.tuner`, with the report bound."""
    device: str
    budget: int
    compiling: Step | None = None
    """torch.compile of the target in its default mode; None where it does not apply."""
    again: RankAgain | None = None
    """A planner that learns from what was measured; asked once, after the first race."""
    _contestants: dict[str, Contestant] = field(default_factory=dict)
    """By the candidate's id."""
    _searched: set[str] = field(default_factory=set)
    """Sites whose parameters were compared."""
    _judging: dict[str, asyncio.Task[Proposal]] = field(default_factory=dict)
    """Full judgements under way."""
    _withdrawn: set[str] = field(default_factory=set)
    """Candidates that need not be timed while a better one is judged."""

    async def run(self, ranked_plans: AsyncIterator[RankedPlan]) -> tuple[Proposal, ...]:
        """Every candidate that was judged, best first; none when there is nothing to judge."""
        found = await self._searched_for(ranked_plans)
        if self.compiling is None or not self._compiler_may_win(found):
            return found
        try:
            made = await self.engine.make([self.compiling])
        except RewriteError:  # it cannot be written where the target stands
            return found
        return tuple(sorted([*found, await self.tournament.in_full(made)], key=rank))

    def _compiler_may_win(self, found: Sequence[Proposal]) -> bool:
        """Whether torch.compile, a baseline of every full judgement, would be an offer, and a
        better one than what was found; where nothing was judged, nobody knows."""
        full = [p.evaluation for p in found if COMPILE in p.evaluation.speedups]
        if not full:
            return True
        eager, compiled = (max(e.speedups[name].mid for e in full) for name in (EAGER, COMPILE))
        best = next((p.evaluation for p in found if p.verdict is Verdict.FASTER), None)
        beaten = best is not None and best.speedups[COMPILE].mid > TIE[1]
        return not beaten and eager / compiled >= self.tournament.settings.threshold

    async def _searched_for(self, ranked_plans: AsyncIterator[RankedPlan]) -> tuple[Proposal, ...]:
        deadline = self.tournament.deadline()
        with phases.phase("plan"):
            first = await anext(ranked_plans, None)
        if first is None:
            return ()
        planning = asyncio.create_task(_in_time(first, ranked_plans))
        try:
            if self.budget > 1:
                self._begin(first.candidate.id, first.candidate)
            if self.device != "cuda":
                await asyncio.gather(*self._judging.values())
            with phases.phase("tune"):
                race = await self._compared(first, planning)
            field_, done = await planning, await self._ended()
        finally:
            tasks = (planning, *self._judging.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if race is not None:
            return await self._judged(race, done, deadline)
        judged = list(done.values()) or [await self.tournament.in_full(first.candidate)]
        return await self.tournament.among(judged, [c.candidate for c in field_[1:]], deadline)

    def _begin(self, name: str, candidate: Candidate) -> None:
        """``name``: the contestant's. Whoever is withdrawn before it is timed ends unjudged."""
        judgement = self.tournament.in_full(candidate, lambda: name not in self._withdrawn)
        self._judging[name] = asyncio.create_task(judgement)

    async def _ended(self) -> dict[str, Proposal]:
        """What was judged meanwhile, without what was withdrawn."""
        done = {}
        for name, task in self._judging.items():
            with contextlib.suppress(Withdrawn):
                done[name] = await task
        return done

    async def _go_ahead(self, race: Race) -> None:
        """Judge what leads already; what is far behind it is not timed then. What is safer is: a
        coarser precision may be refused, and the safer candidate must not begin anew."""
        if not race.order or not self._may_judge_more():
            return
        name, speedup = race.order[0], race.speedup(race.order[0])
        bar = max(race.speedup(other) for other in self._judging)
        if name in self._judging or speedup <= max(1.0, LOOKS_BETTER * bar):
            return
        best = self._contestants[name]
        made = await self._made(best)
        if made is not None and made.id not in self._judging:
            behind = [n for n in self._judging if _is_far_behind(race.speedup(n), speedup)]
            self._withdrawn |= {
                n for n in behind if not accuracy.riskier(best.ranks, self._contestants[n].ranks)
            }
            self._begin(name, made)

    def _may_judge_more(self) -> bool:
        """A GPU judges a leader while others are raced, up to a number."""
        if self.device != "cuda" or not self._judging:
            return False
        return len(self._judging) < min(MAX_IN_FULL, self.budget)

    # --- comparing -----------------------------------------------------------------------

    async def _compared(
        self, first: RankedPlan, planning: asyncio.Task[list[RankedPlan]]
    ) -> Race | None:
        """None when there is nothing to compare, or nobody who can. The other plans are written
        down while the process that compares starts, where it is needed in any case."""
        if not (self._can_run(first.candidate) and first.places()) and not self._many(
            await planning
        ):
            return None
        job = self.tournament.prepared
        request = TuneRequest(
            reference=job.reference,
            workload=job.workload,
            device=self.device,
            python=self.tournament.probe.python,
            uses_triton=self.device == "cuda" and self.tournament.probe.triton is not None,
        )
        with contextlib.suppress(EvaluationError):
            # It only saves time: without it everything is judged.
            async with self.tuner(request) as tuner:
                race = await self._raced(tuner, self._racing(await planning))
                return race if race.order else None
        return None

    def _many(self, ranked_plans: Sequence[RankedPlan]) -> bool:
        racing = self._racing(ranked_plans)
        return len(racing) > 1 or any(contestant.ranked_plan.places() for contestant in racing)

    def _racing(self, ranked_plans: Sequence[RankedPlan]) -> list[Contestant]:
        """Those of all contestants that can be compared."""
        for ranked_plan in ranked_plans:
            self._add(
                Contestant(
                    candidate=ranked_plan.candidate,
                    ranked_plan=ranked_plan,
                    steps=ranked_plan.steps,
                    complete=True,
                )
            )
        return [c for c in self._contestants.values() if self._can_run(c.candidate)]

    def _can_run(self, candidate: Candidate) -> bool:
        """Whether it can be compared. What calls torch.compile takes up to minutes at its first
        call."""
        compiles = (
            COMPILER in candidate.program
            and COMPILER not in self.tournament.prepared.program.source
        )
        return not compiles and (self.device == "cuda" or not candidate.uses_triton)

    async def _raced(self, tuner: TunerClient, racing: list[Contestant]) -> Race:
        end = time.monotonic() + TUNE_S[self.device]
        center = next((one for one in racing if not one.ranked_plan.weighed), racing[0])
        race = await self._race(tuner, racing, center)
        await self._go_ahead(race)
        with contextlib.suppress(TunerLost):  # what was found before counts
            new = await self._suggested(race, racing[0].ranked_plan)
            for _ in range(MAX_RACES - 1):
                if not race.order or time.monotonic() - tuner.waited_s > end:
                    break
                best = self._contestants[race.order[0]]
                before = len(self._searched)
                race = await self._race(tuner, [best, *new], best)
                await self._go_ahead(race)
                if len(self._searched) == before and not new:
                    break
                new = []
        return race

    async def _suggested(self, race: Race, first: RankedPlan) -> list[Contestant]:
        """What the planner says to the first race: one more plan, or none."""
        name = first.candidate.id
        if self.again is None or name not in {*race.median_ms, *race.dropped}:
            return []
        ranked_plan = await self.again(first, race.speedup(name) or None)
        if ranked_plan is None or not self._can_run(ranked_plan.candidate):
            return []
        made = Contestant(
            candidate=ranked_plan.candidate,
            ranked_plan=ranked_plan,
            steps=ranked_plan.steps,
            complete=True,
        )
        return [self._add(made)]

    async def _race(self, tuner: TunerClient, known: list[Contestant], center: Contestant) -> Race:
        """These, and other parameters for one step of ``center``."""
        what, variants = await self._variants(center)
        if not variants and len(known) < 2:
            return tuner.known
        return await tuner.race([_variant(c) for c in (*known, *variants)], what)

    async def _variants(self, center: Contestant) -> tuple[str, list[Contestant]]:
        """(name of the skill, variants) of the most valuable step whose parameters nobody knows
        yet."""
        for place in center.ranked_plan.places():
            site = center.ranked_plan.sites[place]
            if site.key in self._searched or self.known.best(site) is not None:
                continue
            self._searched.add(site.key)
            with contextlib.suppress(RewriteError):
                made = await self.engine.variants(center.steps, place, MAX_VARIANTS[self.device])
                others = [
                    replace(center, candidate=c, steps=c.steps, complete=False) for c in made[1:]
                ]
                shorter = await self._without(center, place)
                return site.skill, [self._add(other) for other in (*others, *shorter)]
        return "rewrites", []

    async def _without(self, center: Contestant, tuned: int) -> list[Contestant]:
        """The plan without this step, and without each that has no parameters: one may do
        harm."""
        ranked_plan, found = center.ranked_plan, []
        places = [
            p for p in range(len(ranked_plan.sites)) if p == tuned or p not in ranked_plan.places()
        ]
        for place in places[:MAX_SHORTER] if len(ranked_plan.sites) > 1 else []:
            sites = ranked_plan.sites[:place] + ranked_plan.sites[place + 1 :]
            steps = center.steps[:place] + center.steps[place + 1 :]
            with contextlib.suppress(RewriteError):  # a later step needs it
                made = replace(
                    await self.engine.make(steps), proposer=ranked_plan.candidate.proposer
                )
                shorter = RankedPlan(candidate=made, sites=sites, steps=steps)
                found.append(
                    Contestant(candidate=made, ranked_plan=shorter, steps=steps, complete=True)
                )
        return found

    def _add(self, contestant: Contestant) -> Contestant:
        return self._contestants.setdefault(contestant.candidate.id, contestant)

    # --- judging -------------------------------------------------------------------------

    async def _judged(
        self, race: Race, done: dict[str, Proposal], deadline: float
    ) -> tuple[Proposal, ...]:
        """The race's order, judged in full until nothing that is left looks better."""
        unmeasured = [n for n in self._contestants if n not in race.order and n not in race.dropped]
        await self._judge_in_turn([*race.order, *unmeasured], race, done, deadline)
        await self._judge_in_turn(await self._safer(done), race, done, deadline)
        self._remember(done)
        return tuple(sorted(done.values(), key=rank))

    async def _judge_in_turn(
        self, names: Sequence[str], race: Race, done: dict[str, Proposal], deadline: float
    ) -> None:
        for name in names:
            if len(done) >= min(MAX_IN_FULL, self.budget) or time.monotonic() > deadline:
                break
            if (
                name in done
                or name in race.dropped
                or (done and not self._promising(race, name, done))
            ):
                continue
            made = await self._made(self._contestants[name])
            if made is not None and made.id not in {p.candidate.id for p in done.values()}:
                done[name] = await self.tournament.in_full(made)

    async def _safer(self, done: dict[str, Proposal]) -> list[str]:
        """What gave wrong values, in the next safer classes of precision: the races have seldom
        seen these, because they are slower, and may be all that is left."""
        found = []
        for name in [name for name, proposal in done.items() if _wrong(proposal)]:
            refused = self._contestants[name]
            steps = accuracy.safer(refused.ranked_plan.sites, refused.steps)
            with contextlib.suppress(RewriteError):
                if steps is not None:
                    made = replace(
                        await self.engine.make(steps),
                        proposer=refused.ranked_plan.candidate.proposer,
                    )
                    one = Contestant(
                        candidate=made, ranked_plan=refused.ranked_plan, steps=steps, complete=True
                    )
                    found.append(self._add(one).candidate.id)
        return found

    def _promising(self, race: Race, name: str, done: dict[str, Proposal]) -> bool:
        """Whether it may still be offered instead of what was judged already."""
        contestant = self._contestants[name]
        refused = [self._contestants[n].ranks for n, p in done.items() if _wrong(p)]
        if any(accuracy.coarser(contestant.ranks, ranks) for ranks in refused):
            return False
        if name not in race.median_ms:
            return all(proposal.verdict is not Verdict.FASTER for proposal in done.values())
        passed = [n for n, p in done.items() if p.evaluation.status is EvalStatus.PASSED]
        bar = max((race.speedup(n) for n in passed), default=1.0)
        hopes = [_hope(race, name, n, done[n]) for n in passed if n in race.median_ms]
        return (
            race.speedup(name) > max(1.0, bar * LOOKS_BETTER)
            and max(hopes, default=HOPELESS) >= HOPELESS
        )

    async def _made(self, contestant: Contestant) -> Candidate | None:
        """As it would be offered; None when the engine takes it back."""
        if contestant.complete:
            return contestant.candidate
        with contextlib.suppress(RewriteError):
            made = await self.engine.make(contestant.steps)
            return replace(made, proposer=contestant.ranked_plan.candidate.proposer)
        return None

    def _remember(self, done: dict[str, Proposal]) -> None:
        """What won, for every step whose parameters were searched here."""
        passed = [n for n, p in done.items() if p.evaluation.status is EvalStatus.PASSED]
        if not passed:
            return
        best = self._contestants[min(passed, key=lambda n: rank(done[n]))]
        for place in best.ranked_plan.places():
            if best.ranked_plan.sites[place].key in self._searched:
                self.known.keep(best.ranked_plan.sites[place], best.steps[place].parameters)


async def _in_time(first: RankedPlan, ranked_plans: AsyncIterator[RankedPlan]) -> list[RankedPlan]:
    """The first and the next, and further ones while their making takes no longer than PLAN_S."""
    found, end = [first], time.monotonic() + PLAN_S
    with phases.phase("plan"):
        async for ranked_plan in ranked_plans:
            found.append(ranked_plan)
            if time.monotonic() > end:
                break
    return found


def _variant(contestant: Contestant) -> TunedVariant:
    made = contestant.candidate
    return TunedVariant(name=made.id, source=made.program, entry=made.entry)


def _hope(race: Race, name: str, known: str, judged: Proposal) -> float:
    """Its speedup over the best baseline, from the race and from one that was judged and took part
    in it; the race itself knows nothing of torch.compile."""
    speedup = judged.evaluation.over_best
    return (
        HOPELESS if speedup is None else speedup.mid * race.median_ms[known] / race.median_ms[name]
    )


def _wrong(proposal: Proposal) -> bool:
    return proposal.evaluation.status is EvalStatus.WRONG_RESULT


def _is_far_behind(speedup: float, best: float) -> bool:
    return speedup < LITTLE and best > FAR_AHEAD * speedup
