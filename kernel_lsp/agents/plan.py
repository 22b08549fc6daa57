"""The deterministic policy: a ranker that needs no language model.

It chains executable skills in several plans, each of which becomes a candidate. One takes what
is proved to vanish (plain PyTorch), unless that destroys a fusion which saves more, then fuses the
rest (Triton); another fuses first, where that makes a difference; another is plain PyTorch alone;
all of them also inside a wrapper (a recorded graph). Of these the one that should take the least
time comes first. Others: what competes with a step of the first one for the same operations,
single rewrites. A step starts from the parameters that are known to be best, else from the skill's
default. It never judges or measures; which plan and which parameters are best is found by
comparing (pipeline/search.py)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Candidate, Json, Site, Step

NAME = "plan/2"
MAX_CHAIN = 12
"""Longest chain of rewrites in one candidate; a program that needs more is better split by its
author."""
PLAINER = 0.95
"""Generated kernels must promise more than this: what is about as fast without them is easier to
read, compiles at once and is never far from the original's values. By 5,091 plans measured on an
H200 (trainer/LOG.md), 1.0 and 0.9 would choose a little worse."""
MAX_RIVALS = 4
"""Plans in which another skill gets what the best chain gave to the most promising one."""

MakeCandidate = Callable[[Sequence[Step]], Awaitable[Candidate]]
"""The candidate that these steps lead to."""
FindSites = Callable[[Sequence[Step]], Awaitable[tuple[Site, ...]]]
"""The sites that are left after these steps."""
Weigh = Callable[[Sequence[Step]], Awaitable[float]]
"""About how many seconds a call takes after these steps, without what they wrap around it."""
Prefer = Callable[[Site], Json | None]
"""The parameters that won at such a site before; None: nobody knows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedPlan:
    """Rewrites applied one after the other, and what they lead to."""

    candidate: Candidate
    sites: tuple[Site, ...]
    """Where the steps were applied, in order."""
    steps: tuple[Step, ...]
    weighed: bool = False
    """A policy weighed its steps and parameters one by one: races begin with those of another
    plan."""

    def places(self) -> list[int]:
        """Steps with parameters that can be searched, the most valuable first."""
        found = [
            i
            for i, site in enumerate(self.sites)
            if any(len(c) > 1 for c in site.parameters.values())
        ]
        return sorted(found, key=lambda i: -_benefit(self.sites[i]))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanDraft:
    """A plan in the making."""

    lefts: tuple[tuple[Site, ...], ...]
    """The sites that were open before each step, and those that still are."""
    sites: tuple[Site, ...] = ()
    steps: tuple[Step, ...] = ()

    @property
    def saved(self) -> float:
        """Estimated share of the time that the steps save together; each counts from what the last
        left."""
        return 1.0 - math.prod(1.0 - _benefit(site) for site in self.sites)

    def before(self, place: int) -> PlanDraft:
        """The chain as it was before a step."""
        return PlanDraft(
            lefts=self.lefts[: place + 1], sites=self.sites[:place], steps=self.steps[:place]
        )


class Planner:
    """The plans for one program."""

    def __init__(
        self,
        make: MakeCandidate,
        look: FindSites,
        prefer: Prefer = lambda site: None,
        weigh: Weigh | None = None,
    ) -> None:
        """``weigh`` None: nobody can tell, and fusions come first."""
        self._make, self._look, self._prefer, self._weigh = make, look, prefer, weigh

    async def ranked_plans(
        self, sites: Sequence[Site], *, triton: bool
    ) -> AsyncIterator[RankedPlan]:
        """Best guess first, without duplicates.

        ``triton`` says whether generated kernels can be of use on the device that will judge them.
        """
        seen: set[str] = set()
        async for chain in self._chains(sites, triton):
            ranked_plan = await self._finished(chain)
            if ranked_plan is not None and ranked_plan.candidate.id not in seen:
                seen.add(ranked_plan.candidate.id)
                yield ranked_plan

    async def _chains(self, sites: Sequence[Site], triton: bool) -> AsyncIterator[PlanDraft]:
        start = PlanDraft(lefts=(tuple(sites),))
        collapsed = await self._extend(start, plain=True)
        fused = await self._fused(start) if triton else collapsed
        bold = await self._bold(start, fused) if triton else []
        for chain in await self._forms([fused, *bold, collapsed]):
            yield chain
        for place, rival in rivals(fused)[:MAX_RIVALS]:
            if rival.plain or triton:
                yield await self._wrapped(await self._instead(fused, place, rival, triton))
        for site in rank_sites(sites):  # a single rewrite may win where the whole chain loses
            if site.plain or triton:
                yield await self._then(start, site) or start

    async def _bold(self, start: PlanDraft, fused: PlanDraft) -> list[PlanDraft]:
        """Fusions before anything else, where the careful way has cost one: what is left of
        several small ones can be more than they promised. Only where their calls can be
        compared."""
        costly = {fused.sites[place].plain and not rival.plain for place, rival in rivals(fused)}
        if self._weigh is None or True not in costly:
            return []
        return [await self._extend(await self._extend(start, plain=False), plain=True)]

    async def _forms(self, chains: Sequence[PlanDraft]) -> list[PlanDraft]:
        """The chains, with and without what can go around them, the shortest call first."""
        found: list[tuple[float, PlanDraft]] = []
        several = any(chain.steps != chains[0].steps for chain in chains)
        for chain in chains:
            weight = await self._weight(chain) if several else 1.0
            for site in rank_sites(chain.lefts[-1]):
                # What goes around the whole pays only where it is offered.
                if site.wraps:
                    wrapped = await self._then(chain, site) or chain
                    found.append((weight * (1.0 - _benefit(site)), wrapped))
            found.append((weight, chain))
        return [chain for _, chain in sorted(found, key=lambda pair: pair[0])]

    async def _weight(self, chain: PlanDraft) -> float:
        """Seconds of a call, for a comparison; 0 for all where nobody can tell."""
        if self._weigh is None:
            return 0.0
        try:
            seconds = await self._weigh(chain.steps)
        except RewriteError:
            return 0.0
        return seconds if all(site.plain for site in chain.sites) else seconds / PLAINER

    async def _fused(self, start: PlanDraft, without: frozenset[str] = frozenset()) -> PlanDraft:
        """Plain rewrites that cost no better fusion, the fusions, and what is plain and left."""
        chain = await self._extend(start, plain=True, careful=True, without=without)
        chain = await self._extend(chain, plain=False, without=without)
        return await self._extend(chain, plain=True, without=without)

    async def _extend(
        self,
        chain: PlanDraft,
        *,
        plain: bool,
        careful: bool = False,
        without: frozenset[str] = frozenset(),
    ) -> PlanDraft:
        """Apply the most promising site again and again; one whose rewrite fails is passed over.

        ``careful``: and one after which less can be saved in all.
        """
        failed = set(without)
        while len(chain.sites) < MAX_CHAIN:
            fit = (s for s in rank_sites(chain.lefts[-1]) if s.plain == plain and not s.wraps)
            site = next((s for s in fit if s.key not in failed), None)
            if site is None:
                break
            longer = await self._then(chain, site)
            if longer is None or (careful and promise(longer) < promise(chain)):
                failed.add(site.key)
            else:
                chain = longer
        return chain

    async def _instead(self, chain: PlanDraft, place: int, rival: Site, triton: bool) -> PlanDraft:
        """The chain up to a step, the rival of that step, and what can follow."""
        other = await self._then(chain.before(place), rival)
        if other is None:
            return chain
        without = frozenset((chain.sites[place].key,))
        return await (
            self._fused(other, without)
            if triton
            else self._extend(other, plain=True, without=without)
        )

    async def _wrapped(self, chain: PlanDraft) -> PlanDraft:
        """With the best that can go around it: of 190 pairs measured on an H200, the recorded one
        was faster in 90 %, and what is not recorded does not compete with a first plan that
        is."""
        around = next((site for site in rank_sites(chain.lefts[-1]) if site.wraps), None)
        return (await self._then(chain, around) if around else None) or chain

    async def _then(self, chain: PlanDraft, site: Site) -> PlanDraft | None:
        """One more step, or None when the skill gave up: another plan may still work."""
        steps = (*chain.steps, self._step(site))
        try:
            left = await self._look(steps)
        except RewriteError:
            return None
        return PlanDraft(lefts=(*chain.lefts, left), sites=(*chain.sites, site), steps=steps)

    async def _finished(self, chain: PlanDraft) -> RankedPlan | None:
        """The program that a chain leads to; without its last steps where they cannot be written
        down."""
        for count in range(len(chain.steps), 0, -1):
            with contextlib.suppress(RewriteError):
                made = replace(await self._make(chain.steps[:count]), proposer=NAME)
                return RankedPlan(
                    candidate=made, sites=chain.sites[:count], steps=chain.steps[:count]
                )
        return None

    def _step(self, site: Site) -> Step:
        default = {name: choices[0] for name, choices in site.parameters.items()}
        return Step(skill=site.skill, site=site.site, parameters=self._prefer(site) or default)


def promise(chain: PlanDraft) -> float:
    """Estimated share that is saved when the open fusions follow; of rivals for one operation the
    best."""
    left, taken = 1.0 - chain.saved, set[str]()
    for site in rank_sites(chain.lefts[-1]):
        names = set(site.site.split("+"))
        if not site.plain and not site.wraps and not names & taken:
            taken |= names
            left *= 1.0 - _benefit(site)
    return 1.0 - left


def rivals(chain: PlanDraft) -> list[tuple[int, Site]]:
    """(place of a step, site that the step took away), the most promising first.

    A site that is gone after a step competed with it for operations: a fused kernel for a matrix
    product and its tail, say, with one for the tail alone."""
    found = []
    for place, chosen in enumerate(chain.sites):
        still = {site.key for site in chain.lefts[place + 1]}
        gone = (s for s in rank_sites(chain.lefts[place]) if s.key not in still and not s.wraps)
        found += [(place, site) for site in gone if site.key != chosen.key]
    return sorted(found, key=lambda pair: -_benefit(pair[1]))


def rank_sites(sites: Iterable[Site]) -> list[Site]:
    """Sites whose proofs all hold, largest estimated saving first, ties by name so that runs
    repeat."""
    sound = [site for site in sites if all(proof.holds for proof in site.proofs)]
    return sorted(sound, key=lambda site: (-_benefit(site), site.skill, site.site))


def _benefit(site: Site) -> float:
    return min(1.0, max(0.0, site.benefit or 0.0))
