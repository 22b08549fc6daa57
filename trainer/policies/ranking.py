"""How good a policy in the compact form is on measured plans of tasks that it never saw, beside
the rule.

Per task: the first suggestion is what greedy decoding says, held to measured plans; the next ones
follow by their probability, as the product tries them (agents/learned.py). The rule's first
suggestion is its first plan; then come its other plans, then what differs from the first in
the fewest parameters. Everything is looked up, so arms are compared on the same measurements. Not
covered: plans that were not measured, which the product may say (a device judges these)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from kernel_lsp.agents.prompt_encoding import Dialog
from kernel_lsp.records import Json
from trainer.algorithms import batches
from trainer.algorithms.batches import Example
from trainer.data.intervals import ratios
from trainer.policies import models
from trainer.policies.imitation import example
from trainer.policies.lines import Line, LineWriter
from trainer.policies.plan_data import MeasuredPlan, TaskPlans
from trainer.tasks.spaces import NEAR

MARGINS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 100.0)
"""By how much a word must be likelier than the rule's before the policy says it; the last never
deviates."""
TOKENS = 32768
"""Padded ones of one forward pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """Plans of one task, in the order in which somebody suggests them."""

    task: TaskPlans
    plans: tuple[MeasuredPlan, ...]

    @property
    def first(self) -> float:
        """ln of the first suggestion's speedup over the best's; after one that fails the program
        stays."""
        return math.log((self.plans[0].speedup or 1.0) / self.task.best)

    @property
    def needed(self) -> int:
        """Evaluations until one comes within 5 % of the best."""
        bar = NEAR * self.task.best
        return next(i for i, plan in enumerate(self.plans, 1) if (plan.speedup or 0.0) >= bar)


def policy(tasks: Sequence[TaskPlans], model: Any, pad: int, *, skip: bool = False) -> list[Ranked]:
    """The plans of each task in the model's order. ``skip``: without the selection agent."""
    return policies(tasks, model, pad, (0.0,), skip=skip)[0.0]


def _selected(
    tasks: Sequence[TaskPlans], begun: Sequence[Dialog], writer: LineWriter
) -> list[Dialog]:
    """The dialogs after the selection agent has spoken."""
    lines = [Line(task, dialog.copy(), 0) for task, dialog in zip(tasks, begun, strict=True)]
    writer.write(lines, 0, greedy=True)
    return [line.dialog for line in lines]


def policies(
    tasks: Sequence[TaskPlans],
    model: Any,
    pad: int,
    margins: Sequence[float],
    *,
    skip: bool = False,
) -> dict[float, list[Ranked]]:
    """The plans of each task in the model's order, for several margins (lines.Writer) by which it
    deviates from the rule."""
    begun = [Dialog(task.situation, skip=skip) for task in tasks]
    chosen = begun if skip else _selected(tasks, begun, LineWriter(model, pad))
    words = [
        dialog.words[len(before.words) :] for dialog, before in zip(chosen, begun, strict=True)
    ]
    rows = [
        (number, plan, example(task, plan, skip=skip, selected=said))
        for number, (task, said) in enumerate(zip(tasks, words, strict=True))
        for plan in task.plans
    ]
    scores = score_examples(model, pad, [row for _, _, row in rows])
    found = {}
    for margin in margins:
        lines = [Line(task, dialog.copy(), 1) for task, dialog in zip(tasks, chosen, strict=True)]
        LineWriter(model, pad, margin=margin).write(lines, 0, greedy=True)
        own: list[list[tuple[float, MeasuredPlan]]] = [[] for _ in tasks]
        for (number, plan, _), score in zip(rows, scores, strict=True):
            own[number].append((math.inf if plan is lines[number].tried[0] else score, plan))
        found[margin] = [
            Ranked(
                task=task, plans=tuple(plan for _, plan in sorted(pairs, key=lambda pair: -pair[0]))
            )
            for task, pairs in zip(tasks, own, strict=True)
        ]
    return found


def score_examples(model: Any, pad: int, examples: Sequence[Example]) -> list[float]:
    """Log-probability of each whole dialog under the whole grammar."""
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


def rule(tasks: Sequence[TaskPlans]) -> list[Ranked]:
    """The plans of each task in the order of the rule."""
    return [Ranked(task=task, plans=tuple(sorted(task.plans, key=_later(task)))) for task in tasks]


def _later(task: TaskPlans) -> Callable[[MeasuredPlan], tuple[int, int]]:
    first = task.plans[0]
    return lambda plan: (
        -1 if plan.rule or plan is first else _apart(first, plan),
        task.plans.index(plan),
    )


def _apart(one: MeasuredPlan, other: MeasuredPlan) -> int:
    """Parameters that differ; many where the steps do."""
    if [(s.skill, s.site) for s in one.steps] != [(s.skill, s.site) for s in other.steps]:
        return 100
    return sum(
        mine.parameters.get(name) != value
        for mine, theirs in zip(one.steps, other.steps, strict=True)
        for name, value in theirs.parameters.items()
    )


def cross_validate(by_margin: Mapping[float, Sequence[Ranked]]) -> tuple[list[Ranked], float]:
    """Every task with the margin that is best on *other* families, and the one that is best on all.

    Families are in two halves; the margin of one half is chosen by the tasks of the other.
    """
    tasks = [one.task for one in next(iter(by_margin.values()))]
    halves = [hashlib.sha256(task.family.encode()).digest()[0] % 2 for task in tasks]

    def best(places: Sequence[int]) -> float:
        return max(
            by_margin, key=lambda margin: math.fsum(by_margin[margin][i].first for i in places)
        )

    chosen = [best([i for i, other in enumerate(halves) if other != half]) for half in (0, 1)]
    found = [by_margin[chosen[half]][i] for i, half in enumerate(halves)]
    return found, best(range(len(tasks)))


def report(found: Sequence[Ranked], against: Sequence[Ranked], seed: int = 0) -> Json:
    """One arm beside another (the rule), over the same tasks: geometric means with bootstrapped
    intervals.

    ``each``: task -> ln(first / best) of the one and the other, then the evaluations that they
    need."""
    first, other = [one.first for one in found], [one.first for one in against]
    needed, theirs = [one.needed for one in found], [one.needed for one in against]
    gains = [mine - its for mine, its in zip(first, other, strict=True)]
    fewer = [math.log(mine / its) for mine, its in zip(needed, theirs, strict=True)]
    return {
        "tasks": len(found),
        "families": len({one.task.family for one in found}),
        "first_over_best": ratios(first, seed),
        "first_over_rules": ratios(gains, seed),
        "evaluations_to_95": {"mean": fmean(needed), "median": sorted(needed)[len(needed) // 2]},
        "evaluations_over_rules": ratios(fewer, seed),
        "at_once": fmean(one == 1 for one in needed),
        "each": {
            one.task.name: [round(mine, 4), round(its, 4), mine_n, its_n]
            for one, mine, its, mine_n, its_n in zip(
                found, first, other, needed, theirs, strict=True
            )
        },
    }
