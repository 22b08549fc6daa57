"""What a policy for kernels, or the rule, suggests first of measured plans, looked up; and both
compared.

Not covered: what a policy says beyond these plans.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from kernel_lsp.records import Json
from trainer.data.intervals import of_groups
from trainer.policies.launches import KernelPlans
from trainer.tasks.spaces import NEAR


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderedPlans:
    """One kernel's plans in somebody's order, looked up."""

    task: KernelPlans
    order: tuple[int, ...]

    @property
    def first(self) -> float:
        """ln of the first one's speedup over the best; after one that fails the kernel stays."""
        return math.log((self.task.plans[self.order[0]].speedup or 1.0) / self.task.best)

    @property
    def needed(self) -> int:
        """Evaluations until one comes within 5 % of the best plan."""
        bar = NEAR * max(plan.speedup or 0.0 for plan in self.task.plans)
        reached = (
            n for n, p in enumerate(self.order, 1) if (self.task.plans[p].speedup or 0.0) >= bar
        )
        return next(reached)


def rule(task: KernelPlans) -> OrderedPlans:
    """The rule's plans in its order, then the rest as it was recorded."""
    rest = sorted(range(len(task.plans)), key=lambda place: (not task.plans[place].rule, place))
    first = task.first if task.first is not None else rest[0]
    return OrderedPlans(task=task, order=(first, *(place for place in rest if place != first)))


def policy(task: KernelPlans, scores: Mapping[int, float]) -> OrderedPlans:
    """The plans of a task, those with the highest scores first."""
    return OrderedPlans(task=task, order=tuple(sorted(scores, key=lambda place: -scores[place])))


def comparable(tasks: Sequence[KernelPlans]) -> list[int]:
    """Places of those where the rule's first suggestion of today was measured, and some plan
    runs."""
    return [
        place
        for place, task in enumerate(tasks)
        if task.first is not None and any(plan.speedup for plan in task.plans)
    ]


def report(found: Sequence[OrderedPlans]) -> Json:
    """The policy beside the rule: (low, mean, high), by drawing families again."""
    other = [rule(one.task) for one in found]
    gains = [mine.first - its.first for mine, its in zip(found, other, strict=True)]
    fewer = [math.log(mine.needed / its.needed) for mine, its in zip(found, other, strict=True)]
    return {
        "kernels": len(found),
        "families": len({one.task.family for one in found}),
        "first_over_best": _families([one.first for one in found], found),
        "rule_over_best": _families([one.first for one in other], found),
        "first_over_rules": _families(gains, found),
        "evaluations_to_95": [
            fmean(one.needed for one in found),
            fmean(one.needed for one in other),
        ],
        "evaluations_over_rules": _families(fewer, found),
        "each": {
            one.task.name: [round(one.first, 4), round(its.first, 4), one.needed, its.needed]
            for one, its in zip(found, other, strict=True)
        },
    }


def _families(logs: Sequence[float], of: Sequence[OrderedPlans]) -> list[float]:
    groups: dict[str, list[float]] = {}
    for value, one in zip(logs, of, strict=True):
        groups.setdefault(one.task.family, []).append(value)
    low, high = of_groups(groups.values())
    return [round(math.exp(value), 4) for value in (low, fmean(logs), high)]
