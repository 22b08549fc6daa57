"""How good a policy in the compact form is on measured plans of tasks that it never saw, beside the rule.

Per task: the first suggestion is what greedy decoding says, held to measured plans; the next ones follow by
their probability, as the product tries them (agents/learned.py). The rule's first suggestion is its first
course; then come its other courses, then what differs from the first in the fewest parameters. Everything is
looked up, so arms are compared on the same measurements. Not covered: plans that were not measured, which the
product may say (a device judges these).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from kernel_lsp.agents.compact import Talk
from kernel_lsp.records import Json
from trainer import batches, models
from trainer.batches import Example
from trainer.evaluate import NEAR, interval
from trainer.imitation import example
from trainer.lines import Line, Writer
from trainer.shown import Plan, Shown

TOKENS = 32768
"""Padded ones of one forward pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """Plans of one task, in the order in which somebody suggests them."""

    task: Shown
    plans: tuple[Plan, ...]

    @property
    def first(self) -> float:
        """ln of the first suggestion's speedup over the best's; after one that fails the program stays."""
        return math.log((self.plans[0].speedup or 1.0) / self.task.best)

    @property
    def needed(self) -> int:
        """Evaluations until one comes within 5 % of the best."""
        bar = NEAR * self.task.best
        return next(i for i, plan in enumerate(self.plans, 1) if (plan.speedup or 0.0) >= bar)


def policy(tasks: Sequence[Shown], model: Any, pad: int, *, skip: bool = False) -> list[Ranked]:
    """``skip``: without the selection agent."""
    writer = Writer(model, pad)
    chosen = [Line(task, Talk(task.situation, skip=skip), 0 if not skip else 1) for task in tasks]
    if not skip:
        writer.write(chosen, 0, greedy=True)
    lines = chosen if skip else [Line(line.task, line.talk.copy(), 1) for line in chosen]
    begins = [len(Talk(task.situation, skip=skip).words) for task in tasks]
    selected = [None if skip else line.talk.words[begin:] for line, begin in zip(chosen, begins, strict=True)]
    writer.write(lines, 0, greedy=True)
    rows = [
        (number, plan, example(task, plan, skip=skip, selected=words))
        for number, (task, words) in enumerate(zip(tasks, selected, strict=True))
        for plan in task.plans
    ]
    scores = scored(model, pad, [row for _, _, row in rows])
    found: list[list[tuple[float, Plan]]] = [[] for _ in tasks]
    for (number, plan, _), score in zip(rows, scores, strict=True):
        first = plan is lines[number].tried[0]
        found[number].append((math.inf if first else score, plan))
    return [
        Ranked(task=task, plans=tuple(plan for _, plan in sorted(own, key=lambda pair: -pair[0])))
        for task, own in zip(tasks, found, strict=True)
    ]


def scored(model: Any, pad: int, examples: Sequence[Example]) -> list[float]:
    """Log-probability of each whole talk under the whole grammar."""
    found = [0.0] * len(examples)
    training, device = model.training, next(model.parameters()).device
    model.eval()
    with torch.inference_mode():
        for part in batches.parts(examples, TOKENS):
            batch = batches.collate([examples[place] for place in part], pad).to(device)
            sums = models.logprobs(model, batch).sum(dim=1).tolist()
            for place, value in zip(part, sums, strict=True):
                found[place] = value
    model.train(training)
    return found


def rule(tasks: Sequence[Shown]) -> list[Ranked]:
    return [Ranked(task=task, plans=tuple(sorted(task.plans, key=_later(task)))) for task in tasks]


def _later(task: Shown) -> Callable[[Plan], tuple[int, int]]:
    return lambda plan: (-1 if plan.rule else _apart(task.plans[0], plan), task.plans.index(plan))


def _apart(one: Plan, other: Plan) -> int:
    """Parameters that differ; many where the steps do."""
    if [(s.skill, s.site) for s in one.steps] != [(s.skill, s.site) for s in other.steps]:
        return 100
    return sum(
        mine.parameters.get(name) != value
        for mine, theirs in zip(one.steps, other.steps, strict=True)
        for name, value in theirs.parameters.items()
    )


def report(found: Sequence[Ranked], against: Sequence[Ranked], seed: int = 0) -> Json:
    """One arm beside another (the rule), over the same tasks: geometric means with bootstrapped intervals.

    ``each``: task -> ln(first / best) of the one and the other, then the evaluations that they need.
    """
    first, other = [one.first for one in found], [one.first for one in against]
    needed, theirs = [one.needed for one in found], [one.needed for one in against]
    gains = [mine - its for mine, its in zip(first, other, strict=True)]
    fewer = [math.log(mine / its) for mine, its in zip(needed, theirs, strict=True)]
    return {
        "tasks": len(found),
        "families": len({one.task.family for one in found}),
        "first_over_best": _exp(first, seed),
        "first_over_rules": _exp(gains, seed),
        "evaluations_to_95": {"mean": fmean(needed), "median": sorted(needed)[len(needed) // 2]},
        "evaluations_over_rules": _exp(fewer, seed),
        "at_once": fmean(one == 1 for one in needed),
        "each": {
            one.task.name: [round(mine, 4), round(its, 4), mine_n, its_n]
            for one, mine, its, mine_n, its_n in zip(found, first, other, needed, theirs, strict=True)
        },
    }


def _exp(logarithms: Sequence[float], seed: int) -> dict[str, float]:
    low, high = interval(logarithms, seed)
    return {
        name: math.exp(value) for name, value in (("mean", fmean(logarithms)), ("low", low), ("high", high))
    }
