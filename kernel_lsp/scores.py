"""The numbers of a suite: fast_p, correctness, means, and the table by family. Standard library
only.

One row (a JSON object) per task; ``commands/suites.py`` makes them. Its speedup is

    offered, passed   baseline time / ours, the middle of the interval
    silent            1.0: nothing was offered, so the user's code stays as it was
    anything else     None: a failure, which stays in every denominator

Definitions: ``fast_p`` is the share of *all* tasks that are correct and whose speedup is *above* p
(KernelBench's code), so ``fast_0`` is the correctness rate; ``amsr`` is the mean speedup with
everything below 1 counted as 0 (Kernel-Smith), so outliers drive it; the geometric mean is over
correct tasks alone. Nothing measured is None, never 1. A task that was not begun is missing and in
no denominator."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

THRESHOLDS = (1.0, 1.05, 1.2, 2.0)
BASELINES = ("eager", "best")
"""``best`` is the fastest baseline of the reference's own precision: of eager and torch.compile."""
SLOWER = 0.98
"""An offer below this share of the best baseline is one that should not have been made."""

ScoreRow: TypeAlias = Mapping[str, Any]
SuiteScores: TypeAlias = dict[str, float | int | None]


def fast_p(speedups: Sequence[float | None], p: float) -> float | None:
    """The share of all tasks that are correct with a speedup above ``p``. ``speedups`` has one
    entry per task; None marks one without a correct candidate."""
    if not speedups:
        return None
    return sum(speedup is not None and speedup > p for speedup in speedups) / len(speedups)


def geomean(speedups: Sequence[float | None]) -> float | None:
    """The geometric mean over the correct candidates only; print it beside the correctness rate."""
    known = [speedup for speedup in speedups if speedup is not None]
    return math.exp(sum(math.log(speedup) for speedup in known) / len(known)) if known else None


def amsr(speedups: Sequence[float | None]) -> float | None:
    """Mean speedup of all tasks; failures and slowdowns count as 0."""
    gains = [speedup if speedup is not None and speedup >= 1.0 else 0.0 for speedup in speedups]
    return sum(gains) / len(gains) if gains else None


def summary(speedups: Sequence[float | None]) -> SuiteScores:
    """One row of a results table."""
    return {
        "tasks": len(speedups),
        "correct": fast_p(speedups, 0.0),
        **{f"fast_{p:g}": fast_p(speedups, p) for p in THRESHOLDS},
        "geomean": geomean(speedups),
        "amsr": amsr(speedups),
    }


def speedup(row: ScoreRow, baseline: str) -> float | None:
    """The row's speedup over that baseline (see the top of the file); None where the baseline did
    not take part."""
    if row["status"] == "silent":
        return 1.0
    if not _is_judged(row):
        return None
    known = {name: interval["mid"] for name, interval in row["speedups"].items()}
    if baseline == "best":
        return min(known.values(), default=None)
    return known.get(baseline)


def facts(rows: Sequence[ScoreRow]) -> SuiteScores:
    """What stands beside the speedups of some tasks. Times leave out what came from the cache."""
    offered = [row for row in rows if row["status"] == "offered"]
    fresh = [row for row in rows if not row.get("cached")]
    slower = [row for row in offered if (speedup(row, "best") or 0.0) < SLOWER]
    return {
        "offered": len(offered),
        "share_offered": len(offered) / len(rows) if rows else None,
        "silent": sum(row["status"] == "silent" for row in rows),
        "failed": sum(speedup(row, "eager") is None for row in rows),
        "slower_than_best": len(slower),
        "roofline_share": _median(rows, _roofline),
        "peak_memory": _median(rows, _peak_memory),
        "first_verified_s": _median(fresh, lambda row: row.get("first_verified_s")),
        "total_s": _median(fresh, lambda row: row.get("total_s")),
    }


def groups(rows: Mapping[str, ScoreRow]) -> dict[str, dict[str, SuiteScores]]:
    """Group -> baseline -> scores, and ``facts``. Groups: all, each first folder, each family in
    it."""
    members: dict[str, list[ScoreRow]] = {"all": list(rows.values())}
    for name in sorted(rows):
        folder, _, rest = name.partition("/")
        family = rows[name].get("family")
        if rest:
            members.setdefault(folder, []).append(rows[name])
        if family:
            members.setdefault(f"{folder}/{family}" if rest else family, []).append(rows[name])
    order = sorted(members, key=lambda group: (group != "all", group))
    return {group: _scores(members[group]) for group in order}


def _scores(rows: Sequence[ScoreRow]) -> dict[str, SuiteScores]:
    against = {base: summary([speedup(row, base) for row in rows]) for base in BASELINES}
    return {**against, "facts": facts(rows)}


def _is_judged(row: ScoreRow) -> bool:
    return row["status"] in ("offered", "passed")


def _roofline(row: ScoreRow) -> float | None:
    """Least time that the memory allows / our time; None where either is unknown."""
    least, ours = row.get("least_ms"), row["ms"].get("candidate")
    return least / ours if _is_judged(row) and least and ours else None


def _peak_memory(row: ScoreRow) -> float | None:
    """Our peak memory / eager's, beyond inputs and parameters."""
    peaks = row.get("peak_bytes") or {}
    eager, ours = peaks.get("eager"), peaks.get("candidate")
    return ours / eager if _is_judged(row) and eager and ours is not None else None


def _median(rows: Sequence[ScoreRow], read: Callable[[ScoreRow], float | None]) -> float | None:
    values = [value for row in rows if (value := read(row)) is not None]
    return statistics.median(values) if values else None
