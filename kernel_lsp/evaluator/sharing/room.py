"""Who shares the memory of a device with others, and who needs all of it. No torch.

Jobs of one process run beside each other until one of them runs out of memory; that one is judged
again when it is alone. Does not cover: other processes (memory_claims.py)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Room:
    """Any number at a time, or one alone, who goes first once it waits."""

    def __init__(self) -> None:
        self.inside = 0
        self._waiting = 0
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        """Holds a place beside any number of others; waits while somebody wants to be alone."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._waiting)
            self.inside += 1
        try:
            yield
        finally:
            await asyncio.shield(self._leave())

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Holds the room alone; newcomers wait from now on, those inside are waited for."""
        self._waiting += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self.inside)
                self.inside += 1
            try:
                yield
            finally:
                await asyncio.shield(self._leave())
        finally:
            self._waiting -= 1
            async with self._changed:
                self._changed.notify_all()

    async def _leave(self) -> None:
        async with self._changed:
            self.inside -= 1
            self._changed.notify_all()
