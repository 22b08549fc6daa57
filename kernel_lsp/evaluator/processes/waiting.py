"""OpenMP's idle threads go to sleep at once in a process whose time nobody takes.

GNU's OpenMP, which torch brings along on Linux, has threads look for new work for 300,000 turns (5
to 15 ms) before they sleep, and for 1000 turns when the process has more of them than processors.
A process that computes a little and then talks burns the other processors so: 300 small reductions
took 7.8 s of CPU time on two busy cores, and 0.5 s with this (32 s of wall time and 1.1, since who
is looked for waits behind those who look). The policy is read when the library is loaded, and a
zygote has loaded it for all of its forks; so a thread with a helper of its own is made here, and
they are too many. How many share a computation stays as it is, and with it every result. Not for a
process that is timed: it shall wait as the user's does.

Not covered: other OpenMP libraries, which are left as they are; a process with fewer threads than
processors."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path

TEAM = 2
LIBRARY = "libgomp"


def sleep_soon(threads: int) -> bool:
    """Whether idle threads sleep at once from now on, in a process that computes with so many."""
    library = _library()
    if library is None or not 1 < threads >= len(os.sched_getaffinity(0)):
        return False
    made = threading.Event()
    threading.Thread(target=_hold, args=(library, made), name="openmp-team", daemon=True).start()
    return made.wait(1.0)


def _library() -> ctypes.CDLL | None:
    """The one that is loaded already; another copy would have threads of its own."""
    with contextlib.suppress(OSError):
        mapped = {
            line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()
        }
        found = [path for path in mapped if Path(path).name.startswith(LIBRARY)]
        return ctypes.CDLL(found[0]) if len(found) == 1 else None
    return None


def _hold(library: ctypes.CDLL, made: threading.Event) -> None:
    """Have a team do nothing once; it is there as long as the thread that has made it."""
    nothing = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p)
    library.GOMP_parallel(nothing, None, TEAM, 0)
    made.set()
    threading.Event().wait()
