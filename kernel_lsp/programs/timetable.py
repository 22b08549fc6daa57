"""When the time for a whole program is over, and how long its next runs take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from statistics import fmean

from kernel_lsp.programs.measuring import SLOWEST
from kernel_lsp.programs.stepping import ProgramWay

UNKNOWN_S = 30.0
"""Of a run when none is known."""
COMPILED = 4.0
"""Times as long as the program as it is takes one that compiles, when none is known: 30 s and 8 s
(12 layers on an H100)."""
WARM = 0.6
"""Times as long as the first run of a way that compiles takes its second, which finds a cache: 18.7
and 30.4 s (12 layers on an H200)."""
SLOWLY = 8.0
"""Times as long as torch.compile takes its slowest mode: 251 s and 30 s (the same)."""
TARGETS = 1 / 2
"""Share of the time that targets have at least. Of a third four in ten were cut off on an H200 (60 s
of 4 minutes, 100 s of 8)."""
SURE_EARLY = 1 / 5
"""Share of the time that may go into making a gain sure before targets are looked at: on an H200
117 s of 8 minutes did, and targets began at 207 s."""


class Timetable:
    """Of one program."""

    def __init__(self, end: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``end``: on that clock."""
        self.end, self._clock = end, clock
        self._took: dict[ProgramWay, list[float]] = {}

    @property
    def left_s(self) -> float:
        """Seconds that are left; never below 0."""
        return max(0.0, self.end - self._clock())

    def saw(self, way: ProgramWay, seconds: float) -> None:
        """A run of it has taken so long."""
        self._took.setdefault(way, []).append(seconds)

    def estimate_s(self, way: ProgramWay) -> float:
        """Seconds that the next run of this way will take, about; the first one compiles, what
        follows finds a cache."""
        if took := self._took.get(way):
            return took[-1] * (WARM if _compiles(way) and len(took) == 1 else 1.0)
        alike = [took for one, took in self._took.items() if _compiles(one) == _compiles(way)]
        if not alike:
            others = [took[0] for took in self._took.values()]
            return (COMPILED if _compiles(way) else 1.0) * (min(others, default=UNKNOWN_S))
        known = fmean(took[0] for took in alike)
        return SLOWLY * known if way == SLOWEST else known

    def total_s(self, ways: Iterable[ProgramWay]) -> float:
        """Seconds that one run of each way is estimated to take."""
        return sum(map(self.estimate_s, ways))

    def seconds_for_targets(self, wanted: float, later: Iterable[ProgramWay]) -> float:
        """What the runs ``later`` leave of the time, at least a share of what is left now."""
        return min(wanted, max(self.left_s - self.total_s(later), TARGETS * self.left_s))


def _compiles(way: ProgramWay) -> bool:
    return way.mode is not None or "torch.compile" in way.name


def words_of_seconds(seconds: float) -> str:
    """``40 s``, ``3 min``."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
