"""What other programs take of our processors while something is timed.

Linux says how long each processor was busy (/proc/stat, in ticks of 10 ms) and what each process
took; what is left of the first after all of ours is others'. How long the timed process stood in
line for a processor is known as well (schedstat, in nanoseconds), which short stretches need.

Nobody is acquitted by this: what could be their doing is only not called a cheat; a claim is
lowered by what was seen. Not covered: other systems than Linux, where nothing is known; neighbors
that take memory bandwidth on processors that are not ours; a clock that is lowered by heat."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

BUSY_SHARE = 0.1
"""Of our processors' time, taken by others, above which times may be theirs. On a quiet machine it
was read as 0 to 0.04."""
WAITED_SHARE = 0.1
"""Of the time that a process ran, which it stood in line as well."""
SHORTEST_S = 0.5
"""A stretch in which ticks of 10 ms say something."""
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds since some moment: of the clock, of our processors, of our processes."""

    at: float
    busy: float
    ours: float
    ran: float
    """Of the watched process, by the scheduler's own clock."""
    waited: float


@dataclass(frozen=True, slots=True)
class Load:
    """What happened between two readings."""

    seconds: float
    others: float
    """Share of our processors' time that other programs took."""
    waited: float
    """How long the timed process stood in line, as a share of what it ran."""

    @property
    def busy(self) -> bool:
        """Whether times of this stretch may be long because of others."""
        taken = self.seconds >= SHORTEST_S and self.others > BUSY_SHARE
        return taken or self.waited > WAITED_SHARE

    def __str__(self) -> str:
        return f"other programs took {self.others:.0%} of the processors"


class CompetingLoad:
    """Others' load beside one process of ours: ``began`` a stretch, then :meth:`load`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.began = self._read()

    def restart(self) -> None:
        """Begins a new stretch now."""
        self.began = self._read()

    def load(self) -> Load:
        """What others took since the stretch began."""
        now, then = self._read(), self.began
        seconds = max(now.at - then.at, 1e-6)
        capacity = seconds * len(_processors())
        others = (now.busy - then.busy) - (now.ours - then.ours)
        waited = (now.waited - then.waited) / max(now.ran - then.ran, 1e-3)
        return Load(seconds, min(max(others / capacity, 0.0), 1.0), max(waited, 0.0))

    def _read(self) -> Reading:
        ran, waited = _scheduled(self._pid)
        return Reading(time.monotonic(), _busy_seconds(), _our_seconds(), ran, waited)


def _processors() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}


def _busy_seconds() -> float:
    """Of the processors that we may use, since the machine was started; what a hypervisor took
    from them counts as well."""
    mine = {f"cpu{number}" for number in _processors()}
    busy = 0
    with contextlib.suppress(OSError, ValueError):
        for line in (_PROC / "stat").read_text().splitlines():
            name, *fields = line.split()
            if name in mine:
                user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
                busy += user + nice + system + irq + softirq + steal
    return busy / os.sysconf("SC_CLK_TCK")


def _our_seconds() -> float:
    """Of this process and of all that it has started, the dead among them included."""
    me = psutil.Process()
    spent = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            spent += sum(process.cpu_times()[:4])  # of ended children too
    return spent


def _scheduled(pid: int) -> tuple[float, float]:
    """Seconds that all threads of a process ran, and that they stood in line."""
    ran = waited = 0
    with contextlib.suppress(OSError):
        for task in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (task / "schedstat").read_text().split()
                ran, waited = ran + int(fields[0]), waited + int(fields[1])
    return ran / 1e9, waited / 1e9
