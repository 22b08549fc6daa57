"""Statistics of timed rounds: quantiles, outliers, paired ratios, bootstrap intervals. Standard
library.

The bootstrap of a median needs no random numbers: the median of a resample is one of the order
statistics x(1) <= … <= x(n), and it is at most x(k) exactly when at least half of the n draws have
rank <= k, which is a binomial tail. So the percentile interval of infinitely many resamples is a
pair of ranks (Efron 1979, section 3), takes microseconds, and is the same whenever it is computed.

Does not cover drift *within* a round: the rounds are interleaved so that drift hits every
provider. Rounds count as independent; slow drift that hits providers unequally makes an interval
too narrow, which is one reason why a claim needs 1.05 and not 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import median

from kernel_lsp.records import Interval

CONFIDENCE = 0.99
"""Of intervals behind claims: 0.5 % on each side. With 95 %, programs compared with themselves on
a simulated busy machine (30 rounds, ratios that scatter by 40 %) were called faster in 1.3 % of
300 trials."""
STRICT_CONFIDENCE = 0.999
"""Of a look at the ratio between two series of rounds."""
OUTLIER_MADS = 5.0
MIN_MAD = 0.005
"""Share of the median below which a deviation is no outlier's measure: clocks tick, and a provider
whose times are all equal would otherwise lose every round that is one tick longer."""
WIDE = 0.05
"""Relative width of an interval above which more is measured."""
MAX_DROPPED = 0.2
"""Share of the rounds that may be called outliers; more than that is how the provider behaves."""


def quantile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics (Hyndman and Fan's type 7)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def kept_rounds(times: Mapping[str, Sequence[float]]) -> list[int]:
    """Numbers of the rounds that count, in order: the stated rule for outliers.

    A round is dropped for *all* providers when any of them took longer than its median plus
    OUTLIER_MADS median absolute deviations. At most MAX_DROPPED of the rounds go, the worst first.
    """
    excess: dict[int, float] = {}
    for values in times.values():
        middle = median(values)
        spread = max(median(abs(v - middle) for v in values), MIN_MAD * middle)
        for number, value in enumerate(values):
            if value > middle + OUTLIER_MADS * spread:
                excess[number] = max(excess.get(number, 0.0), (value - middle) / spread)
    count = max((len(values) for values in times.values()), default=0)
    worst = sorted(excess, key=lambda number: -excess[number])[: int(MAX_DROPPED * count)]
    dropped = set(worst)
    return [number for number in range(count) if number not in dropped]


def paired_speedup(
    baseline: Sequence[float], candidate: Sequence[float], confidence: float = CONFIDENCE
) -> Interval:
    """Median of baseline/candidate over rounds, with its percentile-bootstrap interval.

    Round i of both ran in the same moment on the same input, so a ratio cancels what the machine
    did in that round. Raises ValueError when the rounds do not pair up."""
    if len(baseline) != len(candidate) or not baseline:
        raise ValueError(
            "a paired ratio needs as many baseline as candidate rounds, and at least one"
        )
    logs = sorted(math.log(b / c) for b, c in zip(baseline, candidate, strict=True))
    low, high = bootstrap_ranks(len(logs), confidence)
    return Interval(
        low=math.exp(logs[low]),
        mid=math.exp(median(logs)),
        high=math.exp(logs[high]),
        confidence=confidence,
    )


def median_bounds(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The percentile-bootstrap interval of the median of ``values``."""
    low, high = bootstrap_ranks(len(values), confidence)
    ordered = sorted(values)
    return ordered[low], ordered[high]


@lru_cache(maxsize=256)
def bootstrap_ranks(count: int, confidence: float) -> tuple[int, int]:
    """Places (from 0) in the sorted values that bound the bootstrapped median.

    The lower one is the smallest rank k with P(at least half of ``count`` draws are <= k) >= tail.
    The upper one mirrors it, so that swapping two providers turns an interval into its reciprocal.
    For an even count the lower bound is that of the lower middle and the upper of the upper one:
    the wider way."""
    if count < 1:
        raise ValueError("an interval needs at least one value")
    tail = (1 - confidence) / 2
    low, high = 1, count
    while low < high:  # the tail grows with the rank
        middle = (low + high) // 2
        if binomial_tail(count, middle / count, (count + 1) // 2) >= tail:
            high = middle
        else:
            low = middle + 1
    return low - 1, count - low


def binomial_tail(count: int, share: float, least: int) -> float:
    """P(X >= least) for X binomial with ``count`` draws that succeed with probability ``share``."""
    if share >= 1.0 or least <= 0:
        return 1.0
    ways = math.lgamma(count + 1)
    return math.fsum(
        math.exp(
            ways - math.lgamma(k + 1) - math.lgamma(count - k + 1)
            + k * math.log(share) + (count - k) * math.log1p(-share)
        )
        for k in range(least, count + 1)
    )  # fmt: skip


def width(interval: Interval) -> float:
    """Relative width: 0.05 means that the ends lie 5 % apart."""
    return interval.high / interval.low - 1


def is_settled(times: Sequence[float], window: int = 3, spread: float = 0.05) -> bool:
    """Whether warm-up is over: two successive medians of ``window`` runs agree within
    ``spread``."""
    if len(times) < 2 * window:
        return False
    now, before = median(times[-window:]), median(times[-2 * window : -window])
    return abs(now - before) <= spread * before


def scale_interval(interval: Interval, factor: float) -> Interval:
    """The interval with all its ends times ``factor``; its confidence stays."""
    return Interval(
        low=interval.low * factor,
        mid=interval.mid * factor,
        high=interval.high * factor,
        confidence=interval.confidence,
    )
