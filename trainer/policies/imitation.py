"""Measured plans as rows for a supervised start: what `sft` learns from where a recipe has
`world.shown`.

Every plan is written as a dialog of one turn, once with its skills selected and once without, and
each of its words has the same advantage: ln of its speedup minus the mean over the task's plans
that run. What failed counts as half of the slowest. A few hundred tasks are soon known by heart, so
each is also written with its sites in other orders. Not covered: several turns in one dialog
(rollouts/rounds.py samples them)."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator, Sequence
from statistics import fmean

from trainer.algorithms.batches import Example, dialog_example
from trainer.policies.plan_data import MeasuredPlan, TaskPlans, encode_plan, shuffle_sites
from trainer.policies.plan_dialogs import NEAR


def examples(tasks: Sequence[TaskPlans], orders: int = 0) -> list[Example]:
    """Examples of the best plans. ``orders``: besides the ranked one, in turn with and without a
    selection."""
    found = [one for task in tasks for skip in (False, True) for one in _of(task, skip)]
    for number in range(orders):
        anew = (shuffle_sites(task, random.Random(f"{task.name} {number}")) for task in tasks)
        found += [one for task in anew for one in _of(task, skip=number % 2 == 1)]
    return found


def _of(task: TaskPlans, skip: bool) -> Iterator[Example]:
    known = [math.log(plan.speedup) for plan in task.plans if plan.speedup]
    if not known:
        return
    mean, worst = fmean(known), min(known) - math.log(2)
    for plan in task.plans:
        value = (math.log(plan.speedup) if plan.speedup else worst) - mean
        with contextlib.suppress(ValueError):
            # in another order a site may be one too many to be encoded
            yield example(task, plan, value, skip=skip)


def example(
    task: TaskPlans,
    plan: MeasuredPlan,
    value: float = 0.0,
    *,
    skip: bool = False,
    selected: Sequence[str] | None = None,
) -> Example:
    """``best``: within 3 % of the task's best plan, which is as near as times can tell."""
    sample = encode_plan(task, plan, skip=skip, selected=selected).sample()
    near = (plan.speedup or 0.0) >= task.best / NEAR
    spread = [value] * sum(sample.said)
    return dialog_example(
        sample.tokens, sample.said, sample.offered, spread, trajectory=task.name, best=near
    )
