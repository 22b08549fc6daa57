"""The question how much faster a plan is than the rule's first: two plans beside each other, and
one word.

    question = Question(situation, before, rule, plan)
    said = await runtime.reply(question)        one of 33 words, each with its probability
    expected(choice.words, choice.logprobs)    ln of the expected gain

Whoever names steps one by one cannot know what the program will look like in the end; here the
question says it, by the engine's estimates (records.CallCost). The words are those of a dialog
(vocabulary.py), so one model does both. It is shorter than a dialog: of 385 measured programs a
small model learned more from 70 words than from 270. Not covered: which plans there are;
measuring."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kernel_lsp.agents.prompt_encoding import situations, words
from kernel_lsp.agents.prompt_encoding.question import MAX_GAIN, EncodedQuestion
from kernel_lsp.agents.prompt_encoding.situations import Situation
from kernel_lsp.records import CallCost, OperationRole, Site

MAX_NAMES = 48
"""Operations that are named."""
MIN_LEFT = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class WeighedPlan:
    """A plan as the question has it."""

    skills: tuple[str, ...]
    cost: CallCost
    """Of the program that it leads to, without what is wrapped around that."""
    left: float
    """Estimated share of the time that its sites leave."""
    wrapped: bool

    @property
    def call_s(self) -> float:
        """Estimated seconds of one call: of a replay where the plan ends in one, else the longer of
        host and device."""
        return self.cost.replayed_s if self.wrapped else max(self.cost.host_s, self.cost.device_s)


def plan(sites: Sequence[Site], cost: CallCost) -> WeighedPlan:
    """A plan as the question has it. ``sites``: where its steps were applied, in order."""
    left = math.prod(1.0 - min(1.0, max(0.0, site.benefit or 0.0)) for site in sites)
    skills = tuple(site.skill for site in sites)
    return WeighedPlan(
        skills=skills,
        cost=cost,
        left=max(MIN_LEFT, left),
        wrapped=any(site.wraps for site in sites),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanQuestion(EncodedQuestion):
    """See the top of the file. Like a dialog whose turn is the model's."""

    situation: Situation
    before: CallCost
    """Of the program as it is."""
    rule: WeighedPlan
    ranked_plan: WeighedPlan
    words: tuple[str, ...] = field(init=False)

    def _encode(self) -> Iterable[str]:
        calls = [one for one in self.situation.graph.operations if one.role is OperationRole.CALL]
        before, rule, ranked_plan = self.before, self.rule, self.ranked_plan
        yield from situations.device(self.situation)
        yield "operations"
        for call in calls[:MAX_NAMES]:
            yield from words.name(call.op)
        yield "given"
        yield from (_time(before.host_s), _time(before.device_s), _count(before.launches))
        yield _gain(before.host_s, before.device_s)
        for mark, one in (("again", rule), ("then", ranked_plan)):
            yield mark
            yield from _names(one.skills)
            yield "stop"
            yield _count(one.cost.launches)
            yield from _ratios(before, max(before.host_s, before.device_s), one)
        yield "gone"
        yield from _names([skill for skill in rule.skills if skill not in ranked_plan.skills])
        yield "more"
        yield from _names([skill for skill in ranked_plan.skills if skill not in rule.skills])
        yield "got"
        yield from _ratios(rule.cost, rule.call_s, ranked_plan, rule.left)


def _ratios(before: CallCost, call_s: float, now: WeighedPlan, left: float = 1.0) -> Iterable[str]:
    """How many times less the call takes, the host, the device; and how much less is left."""
    yield _gain(call_s, now.call_s)
    yield _gain(before.host_s, now.cost.host_s)
    yield _gain(before.device_s, now.cost.device_s)
    yield _gain(left, now.left)


def _gain(before: float, now: float) -> str:
    return words.gain(before / now if now > 0.0 else None)


def _time(seconds: float) -> str:
    return words.size(round(seconds * 1e9))[0]


def _count(launches: int) -> str:
    return words.number(launches)[0]


def _names(skills: Iterable[str]) -> Iterable[str]:
    return (word for skill in skills for word in situations.skill(skill))


def word(gain: float) -> str:
    """The answer for a measured ln(gain)."""
    step = round(8 * gain / math.log(2))
    return f"g{max(-MAX_GAIN, min(MAX_GAIN, step))}"


def expected_gain(offered: Sequence[str], logprobs: Sequence[float]) -> float:
    """ln of the gain that these probabilities of the words expect."""
    weights = [math.exp(value) for value in logprobs]
    steps = (int(one[1:]) * weight for one, weight in zip(offered, weights, strict=True))
    return math.fsum(steps) / math.fsum(weights) * math.log(2) / 8
