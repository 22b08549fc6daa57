"""Proposers that need no language model: other parameters for a step, and a step more, less or
instead.

Both take a candidate that the engine made, change its steps and let the engine make it anew, with
proofs. What a person or a model wrote has no steps: nothing is proposed for it. Deterministic: the
same archive and context give the same draft. Not covered: whether it is right or faster."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kernel_lsp import wire
from kernel_lsp.agents.offers import Offers
from kernel_lsp.agents.plan import MAX_CHAIN, rank_sites
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Archive, Context, ProposedDraft, SearchTask, Site, Step, Workshop
from kernel_lsp.rewrite.choices import free_parameters
from kernel_lsp.search.space import (
    MAX_LISTED,
    Point,
    SearchAxis,
    SearchSpace,
    judged_speeds,
    promises,
)

MAX_REFUSED = 12
"""Combinations that the engine may refuse before a proposer gives up on this starting point."""
SCATTERED = 4
"""Combinations of a chain that are judged, its defaults among them, before only those near a parent
are looked at: on 20 recorded spaces the best after eight evaluations was 0.8 % [0.0, 1.6] faster."""
MAX_SITES = 6
"""Sites that are tried as a further step, the most promising first."""

OrderNames = Callable[[Sequence[str]], list[str]]
"""Skills, the most promising first (`SkillArms.order` for this target and device)."""


class Mutate:
    """One or two parameters of one step of the parent; anywhere in the space at first, and once all
    of that was tried."""

    name = "mutate/1"
    slow = False

    def __init__(self, workshop: Workshop, archive: Archive) -> None:
        self._workshop, self._archive = workshop, archive
        self._asked: set[str] = set()
        """Chains that were asked for, refused ones included."""
        self._offers = Offers(workshop)

    async def propose(self, task: SearchTask, context: Context) -> ProposedDraft | None:
        """The parent with other parameters of its steps; None where it has no steps or nothing near
        is left to try."""
        parent = context.parent.candidate if context.parent else None
        if parent is None or not parent.steps:
            return None
        space = await self._space(parent.steps)
        center = space.point(parent.steps) if space else None
        if space is None or center is None:
            return None
        draw = random.Random(context.seed)
        for point in self._promising(space, center, draw)[:MAX_REFUSED]:
            steps = space.at(point)
            self._asked.add(wire.dumps(steps))
            try:
                made = await self._workshop.apply(steps)
            except RewriteError:  # a combination that the skill refuses
                continue
            return ProposedDraft(candidate=made)
        return None

    async def _space(self, steps: Sequence[Step]) -> SearchSpace | None:
        """None: nothing can be chosen, or a step is no longer offered."""
        axes = []
        for place, step in enumerate(steps):
            offered = await self._offers.after(steps[:place])
            site = next((s for s in offered if (s.skill, s.site) == (step.skill, step.site)), None)
            if site is None:
                return None
            choices = free_parameters(site.parameters)
            axes += [SearchAxis(step=place, name=n, choices=tuple(c)) for n, c in choices.items()]
        return SearchSpace(steps=tuple(steps), axes=tuple(axes)) if axes else None

    def _promising(self, space: SearchSpace, center: Point, draw: random.Random) -> list[Point]:
        """Untried combinations, the most promising first: at first anywhere, then near ones before
        far ones."""
        known = judged_speeds(space, self._archive.attempts)
        near = space.near(center, 2)
        anywhere = space.all() if space.size <= MAX_LISTED else iter(())
        scattered = len(known) < SCATTERED
        for points in (anywhere, near) if scattered else (near, anywhere):
            fresh = [
                p for p in points if p not in known and wire.dumps(space.at(p)) not in self._asked
            ]
            if fresh:
                scores = promises(fresh, known)
                order = [
                    (-score, draw.random(), point)
                    for score, point in zip(scores, fresh, strict=True)
                ]
                return [point for _, _, point in sorted(order)]
        return []


class ChainProposer:
    """A step more, a step less, or a rival in a step's place."""

    name = "chain/1"
    slow = False

    def __init__(self, workshop: Workshop, order: OrderNames, archive: Archive) -> None:
        self._workshop, self._order, self._archive = workshop, order, archive
        self._asked: set[str] = set()

    async def propose(self, task: SearchTask, context: Context) -> ProposedDraft | None:
        """The parent's steps and one more, drawn from those that are not tried; None where none is
        left."""
        parent = context.parent.candidate if context.parent else None
        if parent is not None and not parent.steps:
            return None
        steps = parent.steps if parent else ()
        draw, tried = random.Random(context.seed), self._known()
        options = [
            chain for chain in await self._options(task, steps) if wire.dumps(chain) not in tried
        ]
        # The first more often.
        keys = [(place + 1) * draw.random() for place in range(len(options))]
        for _, chain in sorted(zip(keys, options, strict=True), key=lambda pair: pair[0])[
            :MAX_REFUSED
        ]:
            self._asked.add(wire.dumps(chain))
            try:
                return ProposedDraft(candidate=await self._workshop.apply(chain))
            except RewriteError:  # a later step needed what is gone
                continue
        return None

    def _known(self) -> set[str]:
        made = (attempt.candidate for attempt in self._archive.attempts)
        return self._asked | {wire.dumps(candidate.steps) for candidate in made if candidate}

    async def _options(self, task: SearchTask, steps: tuple[Step, ...]) -> list[tuple[Step, ...]]:
        without = [steps[:place] + steps[place + 1 :] for place in range(len(steps))]
        after = await self._open(task, steps)
        more = [(*steps, _first(site)) for site in after] if len(steps) < MAX_CHAIN else []
        instead = []
        for place, step in enumerate(steps):
            mine = (step.skill, step.site)
            rivals = [s for s in await self._open(task, steps[:place]) if (s.skill, s.site) != mine]
            instead += [(*steps[:place], _first(rival), *steps[place + 1 :]) for rival in rivals]
        return [chain for chain in (*more, *instead, *without) if chain and _once(chain)]

    async def _open(self, task: SearchTask, steps: Sequence[Step]) -> list[Site]:
        """What may follow these steps, by the bandit's order of skills and then by estimated
        saving."""
        try:
            found = rank_sites(await self._workshop.sites(steps))
        except RewriteError:
            return []
        found = [site for site in found if site.plain or task.triton]
        names = list(dict.fromkeys(site.skill for site in found))
        order = self._order(names)
        return sorted(found, key=lambda site: order.index(site.skill))[:MAX_SITES]


def _once(chain: Sequence[Step]) -> bool:
    """Nothing is applied where it was applied before."""
    return len({(step.skill, step.site) for step in chain}) == len(chain)


def _first(site: Site) -> Step:
    """With its default parameters."""
    first = {name: choices[0] for name, choices in site.parameters.items()}
    return Step(skill=site.skill, site=site.site, parameters=first)
