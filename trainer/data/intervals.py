"""Means over tasks with the interval in which 95 % of them lie when the tasks are drawn again.

scipy's percentile bootstrap, and its cluster form where tasks belong together. The seed fixes
draws: equal values have equal intervals. Not covered: rounds of one measurement
(kernel_lsp/evaluator/stats.py)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

import numpy as np
from scipy import stats

DRAWS = 2000


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """An interval (low, high) of the mean of one value per task."""
    return of_groups([[value] for value in values], seed)


def of_groups(groups: Iterable[Sequence[float]], seed: int = 0) -> tuple[float, float]:
    """The interval of the mean of all values, where whole groups are drawn: of a family with many
    tasks nothing is known about others.

    Percentile bootstrap (Efron 1979): G groups are drawn with replacement `DRAWS` times, each draw
    has the mean sum of totals / sum of sizes, and the interval is between the 2.5 % and 97.5 %
    points of these. Of two values 0 and 1 a draw has the mean 0, 1/2 or 1 with chances 1/4, 1/2
    and 1/4, so that the interval is [0, 1]."""
    entries = np.array([(sum(values), len(values)) for values in groups], float)
    if len(entries) == 1:
        return (float(entries[0, 0] / entries[0, 1]),) * 2
    found = stats.bootstrap(
        entries.T,
        lambda totals, counts, axis: totals.sum(axis) / counts.sum(axis),
        paired=True,
        method="percentile",
        n_resamples=DRAWS,
        rng=seed,
    ).confidence_interval
    return float(found.low), float(found.high)


def ratios(logarithms: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Geometric mean of ratios with its interval, from their logarithms: ``mean``, ``low``,
    ``high``."""
    low, high = interval(logarithms, seed)
    found = {"mean": fmean(logarithms), "low": low, "high": high}
    return {name: math.exp(value) for name, value in found.items()}
