"""Means over tasks with the interval in which 95 % of them lie when the tasks are drawn again.

Percentile bootstrap (Efron, 1979), and its cluster form where tasks belong together. The seed
fixes draws: equal values have equal intervals. Not covered: rounds of one measurement
(kernel_lsp/evaluator/stats.py)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from statistics import fmean

DRAWS = 2000


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Of the mean of one value per task: (low, high)."""
    return of_groups([[value] for value in values], seed)


def of_groups(groups: Iterable[Sequence[float]], seed: int = 0) -> tuple[float, float]:
    """Of the mean of all values, where whole groups are drawn: of a family with many tasks nothing
    is known about others."""
    entries = [(sum(values), len(values)) for values in groups]
    draw = random.Random(seed)
    drawn = (draw.choices(entries, k=len(entries)) for _ in range(DRAWS))
    means = sorted(sum(total for total, _ in one) / sum(count for _, count in one) for one in drawn)
    return means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS) - 1]


def ratios(logarithms: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Geometric mean of ratios with its interval, from their logarithms: ``mean``, ``low``,
    ``high``."""
    low, high = interval(logarithms, seed)
    found = {"mean": fmean(logarithms), "low": low, "high": high}
    return {name: math.exp(value) for name, value in found.items()}
