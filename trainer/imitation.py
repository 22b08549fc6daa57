"""Measured plans as rows for a supervised start: what `sft` learns from where a recipe has `world.shown`.

Every plan is told as a talk of one turn, once with its skills selected and once without (the null arm), and
each of its words has the same advantage: ln of its speedup minus the mean over the task's plans that run.
What failed counts as half of the slowest. Not covered: several turns in one talk (rounds.py samples them).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from trainer.batches import Example
from trainer.shown import Plan, Shown, told
from trainer.sources import talk
from trainer.talks import NEAR


def examples(tasks: Sequence[Shown]) -> list[Example]:
    return [one for task in tasks for one in _of(task)]


def _of(task: Shown) -> Iterator[Example]:
    known = [math.log(plan.speedup) for plan in task.plans if plan.speedup]
    if not known:
        return
    mean, worst = fmean(known), min(known) - math.log(2)
    for plan in task.plans:
        value = (math.log(plan.speedup) if plan.speedup else worst) - mean
        for skip in (False, True):
            yield example(task, plan, value, skip=skip)


def example(
    task: Shown, plan: Plan, value: float = 0.0, *, skip: bool = False, selected: Sequence[str] | None = None
) -> Example:
    """``best``: within 3 % of the task's best plan, which is as near as times can tell."""
    sample = told(task, plan, skip=skip, selected=selected).sample()
    near = (plan.speedup or 0.0) >= task.best / NEAR
    spread = [value] * sum(sample.said)
    return talk(sample.tokens, sample.said, sample.offered, spread, trajectory=task.name, best=near)
