"""One connection for all who ask: made when it is needed, made again when it was lost, ended when
nobody has used it for a while (on Slurm it holds a GPU)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from kernel_lsp.evaluator.remote import machines
from kernel_lsp.evaluator.remote.connection import GateConnection, connect
from kernel_lsp.evaluator.remote.gate_server import GateAbout
from kernel_lsp.records import Progress, Report

IDLE_S = 120.0
MIN_WAIT_S = 60.0


class Link:
    """Raises ConfigError when the setting names no machine."""

    def __init__(self, setting: str, *, wait_s: float = MIN_WAIT_S, idle_s: float = IDLE_S) -> None:
        """``wait_s``: for the machine: a Slurm node may have to be waited for."""
        self.machine = machines.parse(setting)
        self.about: GateAbout | None = None
        """What it said last; None: it was not asked yet."""
        self._wait_s, self._idle_s = max(wait_s, MIN_WAIT_S), idle_s
        self._connection: GateConnection | None = None
        self._connecting = asyncio.Lock()
        self._users = 0
        self._resting: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Link:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @contextlib.asynccontextmanager
    async def connected(
        self, report: Report = lambda progress: None
    ) -> AsyncIterator[GateConnection]:
        """Yields the connection, made now where there is none. Raises EvaluationError."""
        if self._resting is not None:
            self._resting.cancel()
        self._users += 1
        try:
            yield await self._alive(report)
        finally:
            self._users -= 1
            if not self._users:
                loop = asyncio.get_running_loop()
                self._resting = loop.call_later(self._idle_s, self._rest)

    async def _alive(self, report: Report) -> GateConnection:
        async with self._connecting:
            if self._connection is not None and self._connection.lost is not None:
                await self._disconnect()
            if self._connection is None:
                report(Progress(phase="queue", message=f"connecting to {self.machine}"))
                self._connection = await connect(self.machine, self._wait_s)
                self.about = self._connection.about
            return self._connection

    async def look(self, report: Report = lambda progress: None) -> GateAbout:
        """What judges there. Raises EvaluationError."""
        async with self.connected(report) as connection:
            return connection.about

    def _rest(self) -> None:
        self._ending = asyncio.create_task(self._disconnect_idle())

    async def _disconnect_idle(self) -> None:
        async with self._connecting:
            if not self._users:
                await self._disconnect()

    async def close(self) -> None:
        """Ends the connection; the next who asks makes another."""
        if self._resting is not None:
            self._resting.cancel()
        if self._ending is not None:
            await self._ending
        async with self._connecting:
            await self._disconnect()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
