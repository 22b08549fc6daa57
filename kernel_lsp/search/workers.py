"""Who works at the same time: prompts in flight, candidates under judgement, and whether both may
be.

A model on the device that judges would disturb every timing, so there the two kinds take turns in
batches. Elsewhere they overlap freely."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

GENERATE, JUDGE = "generate", "judge"


class SearchWorkers:
    """How many of each kind, and turns between them when they must keep ``apart``."""

    def __init__(self, *, judges: int = 1, samples: int = 1, apart: bool = False) -> None:
        self.judges, self.samples = judges, samples
        self._room = _OneKindAtATime(max(samples, judges)) if apart else None

    @property
    def most(self) -> int:
        """Prompts in flight and candidates that wait for a judge, together. Were only the waiting
        ones counted, replies that come at once would stop all asking until most of them are
        judged."""
        return self.samples + 2 * self.judges

    def generating(self) -> AbstractAsyncContextManager[None]:
        """A context for writing a candidate; waits until there is room for one more."""
        return self._inside(GENERATE)

    def judging(self) -> AbstractAsyncContextManager[None]:
        """A context for judging a candidate; waits until there is room for one more."""
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
        """Wakes all who wait."""
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int | None = None) -> None:
        """Waits until it is given; not at all when it was since ``count`` was ``seen``."""
        if seen is None or seen == self.count:
            await self._event.wait()


class _OneKindAtATime:
    """Any number of one kind, never two kinds. While the other waits, a ``batch`` may come in at
    most."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._changed = Signal()
        self._kind, self._inside, self._admitted = "", 0, 0
        self._waiting: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def inside(self, kind: str) -> AsyncIterator[None]:
        """Wait until no other kind is inside, and be inside while the block runs."""
        self._waiting[kind] += 1
        try:
            while not self._free(kind):
                await self._changed.wait()
        finally:
            self._waiting[kind] -= 1
            self._changed.give()
        self._admitted = self._admitted + 1 if kind == self._kind else 1
        self._kind = kind
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._changed.give()

    def _free(self, kind: str) -> bool:
        if kind != self._kind:
            return not self._inside
        others = any(count for name, count in self._waiting.items() if name != kind)
        return self._admitted < self._batch or not others
