"""The deterministic policy: a ranker that needs no language model.

It chains executable skills in several courses, each of which becomes a candidate: what is proved to vanish
(plain PyTorch) and then the rest fused (Triton), the former alone, the whole inside a wrapper (a recorded
graph), then what competes with a step of the best chain for the same operations, then single rewrites. A step
starts from the parameters that are known to be best, else from the skill's default. It never judges or
measures; which parameters are best is found by comparing (pipeline/search.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Candidate, Json, Site, Step

NAME = "plan/2"
MAX_CHAIN = 12
"""Longest chain of rewrites in one candidate; a program that needs more is better split by its author."""
MAX_RIVALS = 4
"""Courses in which another skill gets what the best chain gave to the most promising one."""

Apply = Callable[[Sequence[Step]], Awaitable[tuple[Candidate, tuple[Site, ...]]]]
"""Apply these steps to the captured program: the candidate, and the sites that are left in it."""
Prefer = Callable[[Site], Json | None]
"""The parameters that won at such a site before; None: nobody knows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """Rewrites applied one after the other, and what they lead to."""

    candidate: Candidate
    sites: tuple[Site, ...]
    """Where the steps were applied, in order."""
    steps: tuple[Step, ...]

    def places(self) -> list[int]:
        """Steps with parameters that can be searched, the most valuable first."""
        found = [i for i, site in enumerate(self.sites) if any(len(c) > 1 for c in site.parameters.values())]
        return sorted(found, key=lambda i: -(self.sites[i].benefit or 0.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """A course in the making."""

    lefts: tuple[tuple[Site, ...], ...]
    """The sites that were open before each step, and those that still are."""
    sites: tuple[Site, ...] = ()
    steps: tuple[Step, ...] = ()
    candidate: Candidate | None = None

    def before(self, place: int) -> Chain:
        """The chain as it was before a step. It has no candidate of its own."""
        return Chain(lefts=self.lefts[: place + 1], sites=self.sites[:place], steps=self.steps[:place])


class Planner:
    """The courses for one program."""

    def __init__(self, apply: Apply, prefer: Prefer = lambda site: None) -> None:
        self._apply, self._prefer = apply, prefer

    async def courses(self, sites: Sequence[Site], *, triton: bool) -> AsyncIterator[Course]:
        """Best guess first, without duplicates.

        ``triton`` says whether generated kernels can be of use on the device that will judge them.
        """
        seen: set[str] = set()
        async for chain in self._chains(sites, triton):
            made = chain.candidate
            if made is not None and made.id not in seen:
                seen.add(made.id)
                yield Course(candidate=replace(made, proposer=NAME), sites=chain.sites, steps=chain.steps)

    async def _chains(self, sites: Sequence[Site], triton: bool) -> AsyncIterator[Chain]:
        start = Chain(lefts=(tuple(sites),))
        collapsed = await self._extend(start, plain=True)
        fused = await self._extend(collapsed, plain=False) if triton else collapsed
        for chain in (fused, collapsed):
            for site in ranked(chain.lefts[-1]):  # what goes around the whole pays only where it is offered
                if site.wraps:
                    yield await self._then(chain, site) or chain
            yield chain
        for place, rival in rivals(fused)[:MAX_RIVALS]:
            if rival.plain or triton:
                yield await self._instead(fused, place, rival, triton)
        for site in ranked(sites):  # a single rewrite may win where the whole chain loses
            if site.plain or triton:
                yield await self._then(start, site) or start

    async def _extend(self, chain: Chain, *, plain: bool, without: frozenset[str] = frozenset()) -> Chain:
        """Apply the most promising site again and again; one whose rewrite fails is passed over."""
        failed = set(without)
        while len(chain.sites) < MAX_CHAIN:
            fit = (s for s in ranked(chain.lefts[-1]) if s.plain == plain and not s.wraps)
            site = next((s for s in fit if _name(s) not in failed), None)
            if site is None:
                break
            longer = await self._then(chain, site)
            if longer is None:
                failed.add(_name(site))
            chain = longer or chain
        return chain

    async def _instead(self, chain: Chain, place: int, rival: Site, triton: bool) -> Chain:
        """The chain up to a step, the rival of that step, and what can follow."""
        other = await self._then(chain.before(place), rival)
        if other is None:
            return chain
        without = frozenset((_name(chain.sites[place]),))
        other = await self._extend(other, plain=True, without=without)
        return await self._extend(other, plain=False, without=without) if triton else other

    async def _then(self, chain: Chain, site: Site) -> Chain | None:
        """One more step, or None when the skill gave up: another course may still work."""
        steps = (*chain.steps, self._step(site))
        try:
            candidate, left = await self._apply(steps)
        except RewriteError:
            return None
        return Chain(lefts=(*chain.lefts, left), sites=(*chain.sites, site), steps=steps, candidate=candidate)

    def _step(self, site: Site) -> Step:
        default = {name: choices[0] for name, choices in site.parameters.items()}
        return Step(skill=site.skill, site=site.site, parameters=self._prefer(site) or default)


def rivals(chain: Chain) -> list[tuple[int, Site]]:
    """(place of a step, site that the step took away), the most promising first.

    A site that is gone after a step competed with it for operations: a fused kernel for a matrix product and
    its tail, say, with one for the tail alone.
    """
    found = []
    for place, chosen in enumerate(chain.sites):
        still = {_name(site) for site in chain.lefts[place + 1]}
        gone = (s for s in ranked(chain.lefts[place]) if _name(s) not in still and not s.wraps)
        found += [(place, site) for site in gone if _name(site) != _name(chosen)]
    return sorted(found, key=lambda pair: -(pair[1].benefit or 0.0))


def ranked(sites: Iterable[Site]) -> list[Site]:
    """Sites whose proofs all hold, largest estimated saving first, ties by name so that runs repeat."""
    sound = [site for site in sites if all(proof.holds for proof in site.proofs)]
    return sorted(sound, key=lambda site: (-(site.benefit or 0.0), site.skill, site.site))


def _name(site: Site) -> str:
    return f"{site.skill}\0{site.site}"
