"""Judges that stay: one per reference, workload, device and interpreter, for candidate after candidate.

Opening a reference costs seconds (its own run, its float64 oracle), beginning a session with a secret seed
of its own costs nothing. A bench is dropped when its judge has died or refused, when a cancelled
evaluation may have left it busy, or when another reference needs its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

from kernel_lsp import wire
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator.processes.pool import Pool
from kernel_lsp.evaluator.processes.sandbox import InSession, Party, Sandbox, ask_judge
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.sharing.manners import Disturbed

MOST = 4
"""Judges that are kept; on a GPU each holds a context of about 0.5 GB."""


class Bench:
    """One judge with an opened reference."""

    def __init__(self, request: EvaluationRequest, pool: Pool) -> None:
        self.sandbox = Sandbox(request, pool)
        self.users = 0
        self.known: dict[str, Any] = {}
        """What was asked about the reference once, for all candidates."""
        self.served = 0
        self._party: Party | None = None
        self._opening = asyncio.create_task(self._open(request))
        self._sessions = itertools.count(1)

    @property
    def usable(self) -> bool:
        if not self._opening.done():
            return True
        if self._opening.cancelled() or self._opening.exception() is not None:
            return False
        return self._party is not None and self._party.child.alive

    async def begin(self, request: EvaluationRequest) -> tuple[InSession, dict[str, Any], list[bytes]]:
        """A session for one candidate: its judge, both replies in one, the constructor's tensors.

        Raises EvaluationError when the reference cannot be judged by.
        """
        opened, init = await asyncio.shield(self._opening)
        assert self._party is not None
        judge = InSession(self._party, next(self._sessions))
        limit_s = request.budget.load_s
        begun, _ = await ask_judge(judge, "begin", limit_s, seed=request.seed, precision=request.precision)
        self.served += 1
        return judge, opened | begun, init

    async def close(self) -> None:
        self._opening.cancel()
        await asyncio.gather(self._opening, return_exceptions=True)
        await self.sandbox.close()

    async def _open(self, request: EvaluationRequest) -> tuple[dict[str, Any], list[bytes]]:
        self._party = await self.sandbox.judge()
        return await ask_judge(
            self._party,
            "open",
            request.budget.load_s,
            program=request.reference,
            workload=request.workload,
            device=request.device,
        )


class Judges:
    """The benches of one gate, the most recently used last."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._benches: dict[str, Bench] = {}

    @contextlib.asynccontextmanager
    async def bench(self, request: EvaluationRequest) -> AsyncIterator[Bench]:
        key = wire.dumps([request.reference, request.workload, request.device, request.python])
        bench = self._benches.pop(key, None)
        if bench is not None and not bench.usable:
            await self._drop(bench)
            bench = None
        bench = self._benches[key] = bench or Bench(request, self._pool)
        bench.users += 1
        clean = False
        try:
            yield bench
            clean = True
        except Exception as error:
            # A rejection leaves the judge as it was; a neighbor shall have the GPU at once.
            clean = not isinstance(error, (TimeoutError, Disturbed))
            raise
        finally:
            bench.users -= 1
            if not bench.usable or not (clean or bench.users):
                if self._benches.get(key) is bench:
                    del self._benches[key]
                await self._drop(bench)
            await self._make_room()

    async def close(self) -> None:
        benches = list(self._benches.values())
        self._benches.clear()
        await asyncio.gather(*(bench.close() for bench in benches))

    async def _drop(self, bench: Bench) -> None:
        if not bench.users:
            await bench.close()

    async def _make_room(self) -> None:
        unused = [key for key, bench in self._benches.items() if not bench.users]
        for key in unused[: max(0, len(self._benches) - MOST)]:
            await self._benches.pop(key).close()


def lost(bench: Bench, error: EvaluationError) -> bool:
    """Whether ``error`` says only that a judge that had served before has died since: worth another try."""
    return not bench.usable and bench.served > 1 and "running the reference failed" in error.cause
