"""Who works at the same time: prompts in flight, candidates under judgement, and whether both may be.

A model on the GPU that judges would disturb every timing, so there the two kinds take turns in batches: while
one kind waits, nobody of the other begins. Elsewhere they overlap freely.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

GENERATE, JUDGE = "generate", "judge"


class Lanes:
    """How many of each kind, and turns between them when they must keep ``apart``."""

    def __init__(self, *, judges: int = 1, samples: int = 1, apart: bool = False) -> None:
        self.judges, self.samples = judges, samples
        self._room = _Room() if apart else None

    @property
    def queue(self) -> int:
        """Candidates that may wait for a judge; enough that none ever waits for a candidate."""
        return 2 * self.judges

    def generating(self) -> AbstractAsyncContextManager[None]:
        return self._inside(GENERATE)

    def judging(self) -> AbstractAsyncContextManager[None]:
        return self._inside(JUDGE)

    def _inside(self, kind: str) -> AbstractAsyncContextManager[None]:
        return self._room.inside(kind) if self._room else contextlib.nullcontext()


class Signal:
    """Something has changed: everybody who waits looks again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.count = 0
        """How often it was given."""

    def give(self) -> None:
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int | None = None) -> None:
        """Until it is given; not at all when it was since ``count`` was ``seen``."""
        if seen is None or seen == self.count:
            await self._event.wait()


class _Room:
    """Any number of one kind, never two kinds; a kind that waits lets nobody of the other in."""

    def __init__(self) -> None:
        self._changed = Signal()
        self._kind, self._count = "", 0
        self._waiting: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def inside(self, kind: str) -> AsyncIterator[None]:
        self._waiting[kind] += 1
        try:
            while not self._free(kind):
                await self._changed.wait()
        finally:
            self._waiting[kind] -= 1
            self._changed.give()
        self._kind = kind
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            self._changed.give()

    def _free(self, kind: str) -> bool:
        others = any(count for name, count in self._waiting.items() if name != kind)
        if self._count:
            return self._kind == kind and not others
        return self._kind != kind or not others
