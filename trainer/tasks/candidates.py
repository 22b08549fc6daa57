"""Which plans of a task are worth measuring, so that a policy can learn from their times.

    plans = Plans(engine, sites, random.Random(task), triton=True)
    first = await plans.first(14)           # the rule's plans, random walks, random parameters
    more = await plans.near(best, 6)        # the best ones so far with one parameter changed

The rule's first plan comes first: every comparison with the rule needs it. Its other plans
show where another skill or site wins, random walks what nobody would have tried, random parameters
what depends on sizes. Programs are made for measuring alone (`Engine.variants`): no batch size
stays free. Not covered: measuring (recording.py)."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernel_lsp.agents.learned import usable
from kernel_lsp.agents.plan import Planner, RankedPlan
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Candidate, Site, Step
from kernel_lsp.rewrite.choices import free_parameters
from kernel_lsp.rewrite.client import Engine

NEVER = frozenset({"compile-target"})
"""torch.compile itself: a baseline that every offer has to beat, and 10 s of compiling for one
plan."""
MAX_COURSES = 6
"""Of the rule's; what it would try after these it seldom reaches."""
WALKS, LONGEST_WALK, STOPS = 2, 4, 0.35
"""Random walks of a task, their steps, and how likely one ends after a step."""
FROM = 8
"""Best-ranked sites that a walk chooses among."""
CHANGED = 0.5
"""How likely each parameter of a random variant is another than the default."""
TRIES = 3
"""Variants that are drawn for each that is wanted: many are the same program as another."""


class Plans:
    """The candidates of one task, none twice."""

    def __init__(
        self, engine: Engine, sites: Sequence[Site], draw: random.Random, *, triton: bool
    ) -> None:
        self._engine, self._draw, self._triton = engine, draw, triton
        self._sites = self._usable(sites)
        self._seen: set[str] = set()

    async def first(self, most: int) -> list[RankedPlan]:
        """Up to ``most``, the rule's first plan first. Empty where nothing applies."""
        ranked_plans = await self._ruled(min(MAX_COURSES, most))
        walks = (
            [ranked_plan for _ in range(WALKS) if (ranked_plan := await self._walk())]
            if ranked_plans
            else []
        )
        wide = [ranked_plan for ranked_plan in ranked_plans if _places(ranked_plan)]
        found = [*ranked_plans, *walks][:most]
        if wide:  # the main plan half of the time: what the rule suggests is what has to be beaten
            weights = [2.0 * len(wide), *(1.0 for _ in wide[1:])]
            found += await self._varied(
                lambda: self._draw.choices(wide, weights)[0], CHANGED, most - len(found)
            )
        return found

    async def near(self, best: Sequence[RankedPlan], most: int) -> list[RankedPlan]:
        """Some of these with one parameter changed, the first ones more often."""
        wide = [ranked_plan for ranked_plan in best if _places(ranked_plan)]
        weights = [1.0 / (place + 1) for place in range(len(wide))]
        return (
            await self._varied(lambda: self._draw.choices(wide, weights)[0], None, most)
            if wide
            else []
        )

    # --- one by one --------------------------------------------------------------------------

    async def _ruled(self, most: int) -> list[RankedPlan]:
        planner = Planner(self._made, self._look, weigh=self._engine.weigh)
        found: list[RankedPlan] = []
        async for ranked_plan in planner.ranked_plans(self._sites, triton=self._triton):
            if ranked_plan.candidate.id not in self._seen:
                self._seen.add(ranked_plan.candidate.id)
                found.append(ranked_plan)
            if len(found) >= most:
                break
        return found

    async def _walk(self) -> RankedPlan | None:
        """Steps at random places with random parameters."""
        steps, sites, left = list[Step](), list[Site](), self._sites
        while left and len(steps) < LONGEST_WALK and not (steps and self._draw.random() < STOPS):
            site = self._draw.choice(left[:FROM])
            steps.append(
                Step(skill=site.skill, site=site.site, parameters=self._chosen(site, CHANGED))
            )
            sites.append(site)
            try:
                left = await self._look(steps)
            except RewriteError:
                return None
        return await self._ranked_plan(steps, sites) if steps else None

    async def _varied(self, choose: Any, share: float | None, most: int) -> list[RankedPlan]:
        """Other parameters of a chosen plan; ``share`` None: of exactly one parameter."""
        found: list[RankedPlan] = []
        for _ in range(TRIES * most):
            if len(found) >= most:
                break
            ranked_plan: RankedPlan = choose()
            steps = (
                self._one_changed(ranked_plan)
                if share is None
                else self._some_changed(ranked_plan, share)
            )
            made = await self._ranked_plan(steps, ranked_plan.sites)
            found += [made] if made else []
        return found

    def _some_changed(self, ranked_plan: RankedPlan, share: float) -> list[Step]:
        return [
            replace(step, parameters={**step.parameters, **self._chosen(site, share)})
            for step, site in zip(ranked_plan.steps, ranked_plan.sites, strict=True)
        ]

    def _one_changed(self, ranked_plan: RankedPlan) -> list[Step]:
        place, name, choices = self._draw.choice(_places(ranked_plan))
        steps = list(ranked_plan.steps)
        others = [
            value for value in choices if value != steps[place].parameters.get(name, choices[0])
        ]
        changed = {**steps[place].parameters, name: self._draw.choice(others)}
        steps[place] = replace(steps[place], parameters=changed)
        return steps

    def _chosen(self, site: Site, share: float) -> dict[str, Any]:
        """Every parameter of a site: its default, or another choice."""
        found = {name: choices[0] for name, choices in site.parameters.items()}
        for name, choices in free_parameters(site.parameters).items():
            if self._draw.random() < share:
                found[name] = self._draw.choice(list(choices))
        return found

    async def _ranked_plan(self, steps: Sequence[Step], sites: Sequence[Site]) -> RankedPlan | None:
        """None: the engine refuses it, or it is a program that is known."""
        with contextlib.suppress(RewriteError):
            made = await self._made(steps)
            if made.id not in self._seen:
                self._seen.add(made.id)
                return RankedPlan(candidate=made, sites=tuple(sites), steps=tuple(steps))
        return None

    async def _look(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        return self._usable(await self._engine.look(steps))

    def _usable(self, sites: Sequence[Site]) -> tuple[Site, ...]:
        return tuple(site for site in usable(sites, triton=self._triton) if site.skill not in NEVER)

    async def _made(self, steps: Sequence[Step]) -> Candidate:
        found = await self._engine.variants(steps, len(steps) - 1, 1)
        if not found:
            raise RewriteError("these steps cannot be written down", "choose others")
        return found[0]


def _places(ranked_plan: RankedPlan) -> list[tuple[int, str, list[Any]]]:
    """(step, parameter, its choices) of everything that can be searched."""
    return [
        (place, name, list(choices))
        for place, site in enumerate(ranked_plan.sites)
        for name, choices in free_parameters(site.parameters).items()
    ]
