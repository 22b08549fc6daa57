"""An end to what takes too long in the main thread, such as torch.compile."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from time import process_time
from typing import Any

TICK_S = 0.1


class Slow(BaseException):
    """The time box of torch.compile is over. No Exception: the compiler swallows those."""


@contextmanager
def time_box(seconds: float) -> Iterator[None]:
    """Raise Slow inside the block after ``seconds``. Main thread only; long C calls finish first.

    Time in which this process stands still because another one is timed does not count: it makes
    no ticks."""
    spent, last = 0.0, process_time()

    def tick(*_: Any) -> None:
        nonlocal spent, last
        now = process_time()
        spent, last = spent + max(TICK_S, now - last), now
        if spent >= seconds:
            raise Slow

    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
