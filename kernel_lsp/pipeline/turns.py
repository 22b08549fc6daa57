"""Who measures on a device now: one job at a time, in this process and across editors.

A quick job has its turn for its whole measurement. A long search takes one for each judgement and
shares it among its workers, so that a job that somebody waits for comes between. Not covered: other
programs on the device (evaluator/sharing)."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from filelock import FileLock, Timeout

from kernel_lsp.records import Progress, Report

TakeTurn = Callable[[], AbstractAsyncContextManager[None]]
"""``async with turn():`` around what measures."""
LOCK_POLL_S = 0.5
LET_GO_S = 20.0
"""Workers that follow each other without a gap give the device back after that long, when somebody
waits."""


@contextlib.asynccontextmanager
async def free() -> AsyncIterator[None]:
    """Holds nothing: for whoever has the device to himself, as the command line has."""
    yield


class DeviceTurns:
    """The turns on one device; one object per process and lock file."""

    def __init__(self, path: Path) -> None:
        self._lock, self._mark = FileLock(path), path.with_suffix(".waiting")
        self._order = asyncio.Lock()
        """First come, first served, in this process."""
        self._waiting = 0

    @property
    def wanted(self) -> bool:
        """Whether somebody waits, here or in another editor."""
        return self._waiting > 0 or self._wanted_elsewhere()

    async def take(self, report: Report) -> None:
        """Waits for a turn on the device, in this process and then across processes; reports while
        it waits. Cancelled, it holds nothing."""
        if self._order.locked():
            report(Progress(phase="queue", message="waiting for the measurement before this one"))
        self._waiting += 1
        try:
            await self._order.acquire()
        finally:
            self._waiting -= 1
        try:
            await self._take_file(report)
        except BaseException:  # a cancellation too: nobody else would give it back
            self._order.release()
            raise

    def give(self) -> None:
        """Gives the device back: the next turn of this process or of another editor begins."""
        self._lock.release()
        self._order.release()

    async def _take_file(self, report: Report) -> None:
        if self._wanted_elsewhere():  # who polls would never find it free between two of our turns
            await asyncio.sleep(2 * LOCK_POLL_S)
        while not _try_lock(self._lock):
            report(Progress(phase="queue", message="another editor measures on this device"))
            with contextlib.suppress(OSError):
                self._mark.touch()
            await asyncio.sleep(LOCK_POLL_S)

    def _wanted_elsewhere(self) -> bool:
        try:
            return time.time() - self._mark.stat().st_mtime < 2 * LOCK_POLL_S
        except OSError:
            return False


class SharedTurn:
    """The turns of one job: a `TakeTurn` that its workers share."""

    def __init__(
        self, device: DeviceTurns, report: Report, clock: Callable[[], float] = time.monotonic
    ):
        self._device, self._report, self._clock = device, report, clock
        self._inside, self._since = 0, 0.0
        self._door = asyncio.Lock()
        self._empty = asyncio.Event()
        self._empty.set()

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        async with self._door:
            # Whoever waits for the device, or for it to be given back, waits in here.
            if self._inside and self._device.wanted and self._clock() - self._since > LET_GO_S:
                await self._empty.wait()
            if not self._inside:
                await self._device.take(self._report)
                self._since = self._clock()
            self._inside += 1
            self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._device.give()
                self._empty.set()


def _try_lock(lock: FileLock) -> bool:
    """A folder that cannot hold a lock file is no reason not to measure."""
    try:
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except OSError as error:
        print(
            f"{lock.lock_file}: {error}; other editors are not waited for",
            file=sys.stderr,
            flush=True,
        )
    return True
