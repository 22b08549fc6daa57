"""Statistics of timed rounds: quantiles, paired ratios, bootstrap intervals. Pure, standard library.

Does not cover drift *within* a round: the rounds are interleaved so that drift hits every provider.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import median

from kernel_lsp.records import Interval

RESAMPLES = 1000


def quantile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics (Hyndman and Fan's type 7)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def paired_speedup(
    baseline: Sequence[float], candidate: Sequence[float], confidence: float = 0.95
) -> Interval:
    """Median of baseline/candidate over rounds, with a percentile-bootstrap interval.

    Round i of both ran back to back on the same input, so a ratio cancels what the machine did
    in that round. Raises ValueError when the rounds do not pair up.
    """
    if len(baseline) != len(candidate) or not baseline:
        raise ValueError("a paired ratio needs as many baseline as candidate rounds, and at least one")
    logs = [math.log(b / c) for b, c in zip(baseline, candidate, strict=True)]
    draw = random.Random(len(logs))
    medians = [median(draw.choices(logs, k=len(logs))) for _ in range(RESAMPLES)]
    tail = (1 - confidence) / 2
    return Interval(
        low=math.exp(quantile(medians, tail)),
        mid=math.exp(median(logs)),
        high=math.exp(quantile(medians, 1 - tail)),
        confidence=confidence,
    )


def settled(times: Sequence[float], window: int = 3, spread: float = 0.05) -> bool:
    """Whether warm-up is over: two successive medians of ``window`` runs agree within ``spread``."""
    if len(times) < 2 * window:
        return False
    now, before = median(times[-window:]), median(times[-2 * window : -window])
    return abs(now - before) <= spread * before


def scaled(interval: Interval, factor: float) -> Interval:
    return Interval(
        low=interval.low * factor,
        mid=interval.mid * factor,
        high=interval.high * factor,
        confidence=interval.confidence,
    )
