"""The numbers of a suite: fast_p, correctness, geometric mean and mean speedup. Standard library only.

Definitions as in KernelBench's code: ``fast_p`` is the share of *all* tasks whose candidate is correct
and whose speedup is *above* p, so a failure stays in the denominator and ``fast_0`` is the correctness
rate. A mean is over what was measured; with nothing measured it is None, never 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

THRESHOLDS = (0.0, 0.8, 1.0, 1.5, 2.0)


def fast_p(speedups: Sequence[float | None], p: float) -> float | None:
    """``speedups`` has one entry per task; None marks one without a correct candidate."""
    if not speedups:
        return None
    return sum(speedup is not None and speedup > p for speedup in speedups) / len(speedups)


def geomean(speedups: Sequence[float | None]) -> float | None:
    """Over the correct candidates only; print it beside the correctness rate."""
    known = [speedup for speedup in speedups if speedup is not None]
    return math.exp(sum(math.log(speedup) for speedup in known) / len(known)) if known else None


def arithmetic_mean(speedups: Sequence[float | None]) -> float | None:
    """Mean speedup (amsr) over the correct candidates."""
    known = [speedup for speedup in speedups if speedup is not None]
    return sum(known) / len(known) if known else None


def summary(speedups: Sequence[float | None]) -> dict[str, float | int | None]:
    """One row of a results table."""
    return {
        "tasks": len(speedups),
        "correct": fast_p(speedups, 0.0),
        **{f"fast_{p:g}": fast_p(speedups, p) for p in THRESHOLDS[1:]},
        "geomean": geomean(speedups),
        "amsr": arithmetic_mean(speedups),
    }
