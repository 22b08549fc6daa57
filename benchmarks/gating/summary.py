"""Statistics of the bars: spread of repeats, rates and how far a few trials bound them. Pure.

Standard library and the gate's own quantile. Does not cover drift between parts: each has a date.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from kernel_lsp.evaluator.stats import quantile
from kernel_lsp.records import Interval

EXCLUDED_BY = 0.02
"""An interval that misses 1 by more than this says something false about equal programs."""


def spread(repeats: Sequence[float]) -> float:
    """Largest relative distance of a repeat from the median of all: 0.01 is one percent."""
    middle = median(repeats)
    return max(abs(value - middle) / middle for value in repeats)


def share_within(spreads: Iterable[float], limit: float) -> float | None:
    """Share of workloads whose repeats stay within ``limit``; None when there are none."""
    found = list(spreads)
    return sum(value <= limit for value in found) / len(found) if found else None


def excludes_one(interval: Interval, by: float = EXCLUDED_BY) -> bool:
    """Whether the interval lies wholly above ``1 + by`` or wholly below ``1 / (1 + by)``."""
    return interval.low > 1 + by or interval.high < 1 / (1 + by)


def upper_bound(events: int, trials: int, confidence: float = 0.95) -> float | None:
    """Clopper and Pearson's one-sided upper bound of a rate: 0 of 300 still allows 1 %.

    The rate at which seeing ``events`` or fewer has probability ``1 - confidence``; None without
    trials."""
    if not trials:
        return None
    low, high = events / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(events, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(events: int, trials: int, rate: float) -> float:
    """Probability of at most ``events`` successes in ``trials``."""
    terms = (
        math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k)
        for k in range(min(events, trials) + 1)
    )
    return math.fsum(terms)


def five_numbers(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Minimum, 5 %, median, 95 %, maximum."""
    low, middle, high = (quantile(values, share) for share in (0.05, 0.5, 0.95))
    return min(values), low, middle, high, max(values)
