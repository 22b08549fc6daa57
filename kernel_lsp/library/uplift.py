"""What the pairs of a verification show. Pure.

The unit is the task: samples of one task share its shapes, its sites and the day's clocks, so they
say nothing about another task. The bound is Student's t over task means (one-sided); with three
tasks that agree it is narrow, with three that do not it asks for more. Tasks on which the skill
changed nothing neither help nor harm and are left out of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from kernel_lsp.records import TaskUplift, Uplift

MIN_TASKS = 3
MIN_SAMPLES = 2
"""Pairs on one task; a task with fewer does not count."""
_T95 = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812,
    1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725,
    1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
)  # fmt: skip
"""One-sided 95 % points of Student's t for 1 to 30 degrees of freedom (Student 1908; any table has
them)."""


def t95(freedom: int) -> float:
    """Student's one-sided 95 % quantile for so many degrees of freedom; beyond the table the last
    row's value, which is a little too careful."""
    return _T95[min(freedom, len(_T95)) - 1]


def bounds(values: Sequence[float]) -> Uplift | None:
    """Mean with one-sided 95 % bounds; None for fewer than two values, which bound nothing.

    m -+ t(n - 1) s / sqrt(n) (Student 1908), s the standard deviation of n values. Both bounds
    together are an interval of 90 %."""
    if len(values) < 2:
        return None
    mean, reach = fmean(values), t95(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Uplift(mean=mean, low=mean - reach, high=mean + reach, tasks=len(values))


def gain(right: bool, speedup: float | None) -> float:
    """What a candidate is worth to a person: max(0, ln speedup); wrong, slower or unknown is worth
    nothing, because it is not offered."""
    return max(0.0, math.log(speedup)) if right and speedup and speedup > 0 else 0.0


def counted_tasks(tasks: Sequence[TaskUplift]) -> list[TaskUplift]:
    """The tasks that say something: the skill changes the candidate, and there are enough
    samples."""
    return [task for task in tasks if task.differs and task.samples >= MIN_SAMPLES]


def fallen(tasks: Sequence[TaskUplift], *, drawn: bool = False) -> str | None:
    """Says in words where correctness falls; None where it does not. Of candidates that a model has
    ``drawn`` all tasks together count, because one more that is wrong on one task is chance; a
    recipe's are the same in every sample."""
    for one in tasks if not drawn else ():
        if one.right_with < one.right_without:
            return f"on {one.task}: {_shares(one.right_with, one.right_without, one.samples)}"
    mine, without = sum(one.right_with for one in tasks), sum(one.right_without for one in tasks)
    return _shares(mine, without, sum(one.samples for one in tasks)) if mine < without else None


def _shares(mine: int, without: int, samples: int) -> str:
    return f"{mine} of {samples} right with it, {without} without it"


def verdict(tasks: Sequence[TaskUplift], *, drawn: bool = False) -> tuple[bool, Uplift | None, str]:
    """(accepted, uplift, why). Never on fewer than `MIN_TASKS` tasks that the skill changed."""
    counted = counted_tasks(tasks)
    found = bounds([task.uplift for task in counted])
    if where := fallen(tasks, drawn=drawn):
        return False, found, f"correctness falls: {where}"
    if len(counted) < MIN_TASKS:
        same = sum(not task.differs for task in tasks)
        also = f"; on {same} it changed nothing" if same else ""
        return (
            False,
            found,
            f"it changed {len(counted)} tasks and {MIN_TASKS} are needed{also}: add tasks",
        )
    assert found is not None
    if found.low > 0:
        return True, found, f"uplift {_times(found)} over {found.tasks} tasks"
    if found.high <= 0:
        return False, found, f"it does harm: {_times(found)} over {found.tasks} tasks"
    return (
        False,
        found,
        f"not shown: {_times(found)} over {found.tasks} tasks; more tasks narrow it",
    )


def is_open(tasks: Sequence[TaskUplift], *, drawn: bool = False) -> bool:
    """Whether a verification may still succeed: not accepted, and neither wrong nor harmful so
    far."""
    accepted, found, _ = verdict(tasks, drawn=drawn)
    wrong = fallen(tasks, drawn=drawn) is not None
    return not accepted and not wrong and (found is None or found.high > 0)


def credits(
    rows: Sequence[Mapping[str, float]], skills: Sequence[str], null: float = 0.0
) -> dict[str, float]:
    """Leave-one-out credit of each skill: the mean loss over ``rows`` when it alone is taken out.

    A row is a task's gains by what proposed it: a skill's name, or "" for the arm without learned
    ones. What a set of skills is worth on a task is the best of them and of that arm."""
    if not rows:
        return {}
    return {skill: fmean(_loss(row, skill, null) for row in rows) for skill in skills}


def _loss(row: Mapping[str, float], skill: str, null: float) -> float:
    others = [value for name, value in row.items() if name != skill]
    without = max([null, *others])
    return max(without, row.get(skill, without)) - without


def hopeless(tasks: Sequence[TaskUplift]) -> bool:
    """Whether a skill does harm on enough tasks: no further one is worth a judgement. To stop early
    for that, and for that alone, makes nothing look better than it is."""
    counted = counted_tasks(tasks)
    found = bounds([task.uplift for task in counted])
    return found is not None and len(counted) >= MIN_TASKS and found.high <= 0


def _times(found: Uplift) -> str:
    return f"{math.exp(found.mean):.3f}x ({math.exp(found.low):.3f} to {math.exp(found.high):.3f})"
