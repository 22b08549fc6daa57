"""The trained policy as a planner for Triton kernels: of what the rule suggests and what is near
it, the plan from which the model expects most; then the rule's first, and its others by what the
model expects.

It is asked one kind of question, by how much a kernel is faster after some steps
(prompt_encoding/launching.py), with both states as the engine sees them launched. Asked first of
the rule's plans. From the best of these and from the rule's first it goes down: without one of
its steps, as long as that promises more, because a part of a chain is often better than the chain.
From the better of both: for every step and every parameter each other choice, all else as it is,
once. These parameters are tried on the rule's first plan as well. What the engine refuses is
passed over. Parameters that won before are not searched, and the rule's first plan is left only
for one that promises more by a margin. A model that fails is followed by the rule, and the reason
is said. Not covered: steps that are in none of the rule's plans; judging; which checkpoint it
is."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernel_lsp import wire
from kernel_lsp.agents.backbones.small.runtime import ModelReply
from kernel_lsp.agents.learned import Tell
from kernel_lsp.agents.plan import MakeCandidate, Planner, Prefer, RankedPlan
from kernel_lsp.agents.prompt_encoding import value_model
from kernel_lsp.agents.prompt_encoding.launching import LaunchQuestion
from kernel_lsp.errors import BackboneError, RewriteError
from kernel_lsp.records import SEMANTIC_PARAMETERS, KernelView, Site, Step

MAX_COURSES = 6
"""Of the rule's that are weighed."""
MAX_ASKED = 32
"""Questions about one kernel: a state takes the engine 30 to 80 ms, an answer the model some 50."""

LaunchAnswer = Callable[[LaunchQuestion], Awaitable[ModelReply]]
"""The model's reply."""
ViewLaunch = Callable[[Sequence[Step]], Awaitable[KernelView]]
"""The kernel and its launch after these steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeighedChain:
    """Steps, where they are applied, and ln of the speedup that the model expects of them."""

    sites: tuple[Site, ...]
    steps: tuple[Step, ...]
    gain: float = 0.0

    def shorter(self) -> Iterator[WeighedChain]:
        """The chain without each one of its steps, but never without any step."""
        for place in range(len(self.steps) if len(self.steps) > 1 else 0):
            sites, steps = (
                (*some[:place], *some[place + 1 :]) for some in (self.sites, self.steps)
            )
            yield WeighedChain(sites=tuple(sites), steps=tuple(steps))

    def others(self, place: int, name: str) -> Iterator[WeighedChain]:
        """The chain with each other choice of one parameter."""
        choices, step = self.sites[place].parameters[name], self.steps[place]
        for choice in choices:
            if choice != step.parameters.get(name, choices[0]):
                changed = replace(step, parameters={**step.parameters, name: choice})
                steps = (*self.steps[:place], changed, *self.steps[place + 1 :])
                yield WeighedChain(sites=self.sites, steps=steps)


class KernelPlanner:
    """The plans for one Triton kernel; like `Planner`."""

    def __init__(
        self,
        *,
        name: str,
        answer: LaunchAnswer,
        launched: ViewLaunch,
        make: MakeCandidate,
        rule: Planner,
        capability: str | None,
        margin: float = 0.0,
        prefer: Prefer = lambda site: None,
        tell: Tell = lambda words: None,
    ) -> None:
        """``name``: `Candidate.proposer`. ``capability``: ``sm_90``; None: unknown. ``margin``: of
        ln(gain), to leave the rule's first plan. ``prefer``: parameters that won before count
        more than the model's. ``tell`` hears why the model was left, when it was."""
        self._name, self._answer, self._launched, self._make = name, answer, launched, make
        self._rule, self._capability, self._margin, self._prefer = rule, capability, margin, prefer
        self._tell = tell
        self._before: KernelView | None = None
        self._gains: dict[str, float | None] = {}
        """By steps; None: the engine refuses them."""
        self._asked = 0

    async def ranked_plans(
        self, sites: Sequence[Site], *, triton: bool
    ) -> AsyncIterator[RankedPlan]:
        """Best guess first, without duplicates."""
        rules = self._rule.ranked_plans(sites, triton=triton)
        made: list[RankedPlan] = []
        async for ranked_plan in rules:
            made.append(ranked_plan)
            if len(made) == MAX_COURSES:
                break
        try:
            made = await self._ordered(made) if made else []
        except BackboneError as error:
            self._tell(f"planned by the rule: {error}")
        for ranked_plan in made:
            yield ranked_plan
        seen = {ranked_plan.candidate.id for ranked_plan in made}
        async for ranked_plan in rules:
            if ranked_plan.candidate.id not in seen:
                yield ranked_plan

    async def _ordered(self, ranked_plans: Sequence[RankedPlan]) -> list[RankedPlan]:
        """What is found near the best of these, and these, by what the model expects; those that
        the engine cannot tell last. Raises BackboneError."""
        with contextlib.suppress(RewriteError):
            self._before = await self._launched(())
        gains = [await self._gain(ranked_plan.steps) for ranked_plan in ranked_plans]
        weighed = [
            (gain, ranked_plan)
            for gain, ranked_plan in zip(gains, ranked_plans, strict=True)
            if gain is not None
        ]
        if not weighed:
            return list(ranked_plans)
        if gains[0] is not None:
            weighed[0] = gains[0] + self._margin, ranked_plans[0]
        weighed += await self._found(max(weighed, key=_promise)[1], ranked_plans)
        ordered = [ranked_plan for _, ranked_plan in sorted(weighed, key=_promise, reverse=True)]
        ordered += [
            ranked_plan
            for gain, ranked_plan in zip(gains, ranked_plans, strict=True)
            if gain is None
        ]
        if ordered[0] is ranked_plans[0]:
            return ordered
        best, *rest = (self._named(ordered[0]), *ordered[1:])
        # A race tunes the whole chain.
        rest.sort(key=lambda ranked_plan: ranked_plan is not ranked_plans[0])
        return [best, *await self._carried(best, ranked_plans[0], ordered), *rest]

    async def _carried(
        self, best: RankedPlan, whole: RankedPlan, known: Sequence[RankedPlan]
    ) -> list[RankedPlan]:
        """The rule's first with the parameters of the best where both have a step: what the best
        does without may be worth something yet. None where that is known, or refused."""
        chosen = {(step.skill, step.site): step for step in best.steps}
        steps = tuple(chosen.get((step.skill, step.site), step) for step in whole.steps)
        try:
            made = await self._make(steps)
        except RewriteError:
            return []
        if any(made.id == ranked_plan.candidate.id for ranked_plan in known):
            return []
        return [self._named(replace(whole, candidate=made, steps=steps))]

    async def _found(
        self, start: RankedPlan, ranked_plans: Sequence[RankedPlan]
    ) -> list[tuple[float, RankedPlan]]:
        """What promises most from here on; none where that is a plan of the rule's, or cannot be
        written down. Raises BackboneError."""
        begun = [
            await self._shortened(chain) for chain in await self._chains((ranked_plans[0], start))
        ]
        best = await self._tuned(max(begun, key=lambda chain: chain.gain))
        if any(best.steps == ranked_plan.steps for ranked_plan in ranked_plans):
            return []
        try:
            made = await self._make(best.steps)
        except RewriteError:
            return []
        if any(made.id == ranked_plan.candidate.id for ranked_plan in ranked_plans):
            return []
        return [
            (best.gain, self._named(RankedPlan(candidate=made, sites=best.sites, steps=best.steps)))
        ]

    async def _chains(self, ranked_plans: Iterable[RankedPlan]) -> list[WeighedChain]:
        """Those of them that the engine can tell. Raises BackboneError."""
        gains = [(ranked_plan, await self._gain(ranked_plan.steps)) for ranked_plan in ranked_plans]
        return [
            WeighedChain(sites=one.sites, steps=one.steps, gain=gain)
            for one, gain in gains
            if gain is not None
        ]

    def _named(self, ranked_plan: RankedPlan) -> RankedPlan:
        return replace(
            ranked_plan, candidate=replace(ranked_plan.candidate, proposer=self._name), weighed=True
        )

    async def _shortened(self, best: WeighedChain) -> WeighedChain:
        """Without the step that it does better without, again and again."""
        while (shorter := await self._best(best, best.shorter())) is not best:
            best = shorter
        return best

    async def _tuned(self, best: WeighedChain) -> WeighedChain:
        """Every searched parameter, one after the other, at its best choice with all else as it
        is."""
        for place, site in enumerate(best.sites):
            if self._prefer(site) is None:
                for name in free_parameters(site.parameters):
                    best = await self._best(best, best.others(place, name))
        return best

    async def _best(self, best: WeighedChain, others: Iterable[WeighedChain]) -> WeighedChain:
        """Of equals the one that is there."""
        for other in others:
            gain = await self._gain(other.steps)
            if gain is not None and gain > best.gain:
                best = replace(other, gain=gain)
        return best

    async def _gain(self, steps: Sequence[Step]) -> float | None:
        """What the model expects of these steps; None: the engine refuses them, or enough was
        asked. Raises BackboneError."""
        key = wire.dumps(list(steps))
        if key not in self._gains and self._before is not None and self._asked < MAX_ASKED:
            self._gains[key] = None
            with contextlib.suppress(RewriteError):
                after = await self._launched(steps)
                self._asked += 1
                self._gains[key] = await self._expected(self._before, after)
        return self._gains.get(key)

    async def _expected(self, before: KernelView, after: KernelView) -> float:
        asked = LaunchQuestion(before=before, after=after, capability=self._capability)
        choice = (await self._answer(asked)).choices[0]
        return value_model.expected_gain(choice.words, choice.logprobs)


def free_parameters(parameters: dict[str, list[Any]]) -> list[str]:
    """Names of those with several choices that differ in speed or accuracy only."""
    return [
        name
        for name, some in parameters.items()
        if len(some) > 1 and name not in SEMANTIC_PARAMETERS
    ]


def _promise(pair: tuple[float, RankedPlan]) -> float:
    return pair[0]
