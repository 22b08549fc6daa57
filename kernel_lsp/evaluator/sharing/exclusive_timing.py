"""Quiet on a GPU: while one child of a gate is timed, the others stand still.

    async with quiet.alone(timer.child):
        ...                                  # ask it to time; nothing else of this gate runs

Judges, workers and timers of other candidates are stopped where they are (SIGSTOP) and go on
afterwards, so nobody waits for anybody's trials to end and a timed window is as short as the
timing itself. Measured on an H200 with 16 cores: 43 candidates a minute instead of 36 with turns
that waited for all trials to end, 76 once the trials' CPU threads were few (devices.few_threads).
A stopped process keeps its CUDA context and memory; kernels that it has launched run to their end,
which `SETTLE_S` allows for and every timing's own warm-up. Seconds in which a child stood still
are not counted against it (process.Child), nor against its evaluation (gate.py).

Whoever has begun to be timed comes before those who have not: of N measurements that arrive
together, the average one is then ready after (N + 1) / 2 of their lengths instead of N.

Covers one process of ours; other editors are kept away by the device's lock (device_lock.py). Does
not cover processes that a candidate has moved out of its process group: they disturb a rival, never
their own timing, for which their worker is dead."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Callable

from kernel_lsp import phases
from kernel_lsp.process import Child

SETTLE_S = 0.01
"""Kernels of small workloads that were launched before the stop end within a millisecond."""


class ExclusiveTiming:
    """The children of one gate that use its GPU."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._alone: Child | None = None
        self._held = False
        self._numbers = itertools.count()
        self._begun: dict[Child, int] = {}
        """Number of a child's first window: of those who wait, the lowest is next."""
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap; the second number keeps what is equal in its order."""

    def add(self, child: Child) -> None:
        """A new child; it stands still at once while another one is timed."""
        self._children = [known for known in self._children if known.alive]
        self._children.append(child)
        if self._alone is not None:
            child.pause()

    @contextlib.asynccontextmanager
    async def alone(self, child: Child, *, anew: bool = False) -> AsyncIterator[None]:
        """Hold everybody but ``child`` for the length of the block. Not to be nested.

        ``anew``: this is not part of a measurement that has begun before; it queues like a first
        window."""
        with phases.phase("wait.alone"):
            await self._turn(child, anew)
        self._alone = child
        try:
            self._others(child, Child.pause)
            await asyncio.sleep(SETTLE_S)
            yield
        finally:
            self._alone = None
            self._others(child, Child.resume)
            self._held = False
            self._open()

    async def _turn(self, child: Child, anew: bool) -> None:
        number, mine = next(self._numbers), asyncio.get_running_loop().create_future()
        self._begun = {known: first for known, first in self._begun.items() if known.alive}
        first = number if anew else self._begun.setdefault(child, number)
        heapq.heappush(self._waiting, (first, number, mine))
        self._open()
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():  # it was given the window in this very moment
                self._held = False
                self._open()
            raise

    def _open(self) -> None:
        """The next window, when none is open."""
        while self._waiting and not self._held:
            mine = heapq.heappop(self._waiting)[2]
            if not mine.done():
                self._held = True
                mine.set_result(None)

    def _others(self, child: Child, do: Callable[[Child], None]) -> None:
        for other in self._children:
            if other is not child:
                do(other)
