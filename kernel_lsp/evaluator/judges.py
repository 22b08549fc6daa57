"""Judges that stay: one per reference, workload, device and interpreter, for candidate after
candidate.

Opening a reference costs seconds (its own run, its float64 oracle), beginning a session with a
secret seed of its own costs nothing. A bench is dropped when its judge has died or refused, when a
cancelled evaluation may have left it busy, or when another reference needs its place; its spare
timer (timers.py) and the worker that waits for a first candidate go with the last who uses or
expects to use it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from kernel_lsp import wire
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import measure
from kernel_lsp.evaluator.measure import JudgeSession, Ready
from kernel_lsp.evaluator.processes.compiled import CompiledKernels
from kernel_lsp.evaluator.processes.crashes import ASKED
from kernel_lsp.evaluator.processes.pool import ZygotePool
from kernel_lsp.evaluator.processes.sandbox import (
    READY_S,
    InSession,
    Party,
    ReferenceCrashed,
    Sandbox,
    ask_judge,
)
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.sharing.device_lock import Disturbed
from kernel_lsp.evaluator.timers import SessionSource, Timers
from kernel_lsp.records import Progress

MAX_JUDGES = 4
"""Judges that are kept; on a GPU each holds a context of about 0.5 GB."""


class JudgeBench:
    """One judge with an opened reference, and timers with it."""

    def __init__(
        self, request: EvaluationRequest, pool: ZygotePool, store: CompiledKernels | None = None
    ) -> None:
        self.sandbox = Sandbox(request, pool)
        self.timers = Timers(self._begin, self._timer)
        self.users = 0
        self.used = False
        self.expecting = 0
        """Jobs that may yet bring candidates."""
        self.known: dict[str, Any] = {}
        """What was asked about the reference once, for all candidates."""
        self.asked = self.served = 0
        """Sessions that were asked for, and those that the judge has begun."""
        self._pool, self._store = pool, store
        self._place: Sandbox | None = None
        """Of a candidate that is still looked for; its worker is there."""
        self._party: Party | None = None
        self._opening = asyncio.create_task(self._open(request))
        self._sessions = itertools.count(1)
        self._over: list[int] = []
        """Sessions that nobody holds any more: a long search would fill the judge with their
        inputs."""

    @property
    def usable(self) -> bool:
        """Whether a judgement may be asked of it: it is being opened, or its process lives."""
        if not self._opening.done():
            return True
        if self._opening.cancelled() or self._opening.exception() is not None:
            return False
        return self._party is not None and self._party.child.alive

    @property
    def idle(self) -> bool:
        """Whether nobody uses it or waits for it."""
        return not self.users and not self.expecting

    async def begin(self, request: EvaluationRequest) -> JudgeSession:
        """A session for one candidate. Raises EvaluationError when the reference cannot be judged
        by."""
        return await self.timers.session(request) or await self._begin(request)

    async def expect(self, request: EvaluationRequest) -> None:
        """Make what the first candidate will need: a timer and a worker."""
        if self._place is not None:
            await self.timers.expect(request)
            return
        self._place = self._sandbox(request)
        await asyncio.gather(self.timers.expect(request), self._place.expect_worker())

    def place(self, request: EvaluationRequest) -> Sandbox:
        """The folder and limits in which a candidate's trials take place; whoever asks closes
        it."""
        place = self._place
        if place is None or place.request.budget.memory_bytes != request.budget.memory_bytes:
            return self._sandbox(request)
        self._place, place.request = None, request
        return place

    def _sandbox(self, request: EvaluationRequest) -> Sandbox:
        """Whose processes read the inputs that this judge draws."""
        return Sandbox(request, self._pool, self.sandbox.outbox, self._store)

    async def _begin(self, request: EvaluationRequest) -> JudgeSession:
        opened, init = await asyncio.shield(self._opening)
        assert self._party is not None
        self.asked += 1
        limit_s = request.budget.load_s
        while self._over:
            await ask_judge(InSession(self._party, self._over.pop()), "close", limit_s)
        judge = InSession(self._party, next(self._sessions))
        weakref.finalize(judge, self._over.append, judge.session)
        begun, _ = await ask_judge(
            judge, "begin", limit_s, seed=request.seed, precision=request.precision
        )
        self.served += 1
        return JudgeSession(judge, opened | begun, init)

    async def _timer(self, request: EvaluationRequest, get_session: SessionSource) -> Ready:
        sandbox = self._sandbox(request)
        try:
            return await measure.prepare(request, sandbox, get_session)
        except BaseException:  # also a cancellation
            await sandbox.close()
            raise

    async def close(self) -> None:
        """Ends judge and timers, and deletes their folders; an opening is cancelled."""
        self._opening.cancel()
        await asyncio.gather(self._opening, return_exceptions=True)
        await self.rest()
        await self.sandbox.close()

    async def rest(self) -> None:
        """End what was made for candidates of whom none will come."""
        place, self._place = self._place, None
        if place is not None:
            await place.close()
        await self.timers.close()

    async def _open(self, request: EvaluationRequest) -> tuple[dict[str, Any], list[bytes]]:
        """A layout or batch size that ends the judge is one that the reference does not accept:
        opened again without it, because a kernel that is right on its own inputs can still be
        judged on these."""
        crashed: dict[str, str] = {}
        while True:
            self._party = await self.sandbox.judge()
            await ask_judge(self._party, "ready", READY_S, device=request.device)
            try:
                opened, init = await ask_judge(
                    self._party,
                    "open",
                    request.budget.load_s,
                    program=request.reference,
                    workload=request.workload,
                    device=request.device,
                    without=list(crashed),
                )
            except ReferenceCrashed as error:
                inputs = error.inputs.removesuffix(ASKED)
                if inputs == error.inputs or inputs in crashed:
                    raise
                crashed[inputs] = error.crash
            else:
                return {**opened, "crashed": crashed}, init


class Judges:
    """The benches of one gate, the most recently used last."""

    def __init__(self, pool: ZygotePool, store: CompiledKernels | None = None) -> None:
        self._pool, self._store = pool, store
        self._benches: dict[str, JudgeBench] = {}

    def seeded(self, request: EvaluationRequest) -> EvaluationRequest:
        """The request with the secret seed of the session that waits for its candidate, if one
        does."""
        bench = self._benches.get(_key(request))
        if bench is None or request.seed is not None:
            return request
        return replace(request, seed=bench.timers.seed(request))

    @contextlib.asynccontextmanager
    async def expecting(self, request: EvaluationRequest) -> AsyncIterator[JudgeBench]:
        """Keeps the bench of this reference for the block, for a job that may bring candidates."""
        bench = await self._found(request)
        bench.expecting += 1
        try:
            yield bench
        finally:
            bench.expecting -= 1
            if bench.idle and not bench.used:  # no candidate came, or the job was cancelled before
                self._forget(bench)
                await bench.close()
            elif bench.idle:
                await bench.rest()
            await self._make_room()

    async def others_are_made(self, mine: JudgeBench, report: Callable[[Progress], None]) -> None:
        """Waits until no spare of another reference is being made, which would disturb a
        measurement on a CPU."""
        making = [bench.timers.making for bench in self._benches.values() if bench is not mine]
        if waiting := [one for one in making if one is not None]:
            text = "waiting until the baselines of another job are made"
            report(Progress(phase="queue", message=text))
            await asyncio.wait(waiting)

    @contextlib.asynccontextmanager
    async def bench(self, request: EvaluationRequest) -> AsyncIterator[JudgeBench]:
        """Yields the bench of the request's reference, opened now if there is none; one that failed
        in use is given up afterwards."""
        bench = await self._found(request)
        bench.users += 1
        bench.used = True
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
                self._forget(bench)
                await self._drop(bench)
            elif bench.idle:
                await bench.rest()
            await self._make_room()

    async def _found(self, request: EvaluationRequest) -> JudgeBench:
        """The bench of this reference, the most recently used from now on."""
        key = _key(request)
        bench = self._benches.pop(key, None)
        if bench is not None and not bench.usable:
            await self._drop(bench)
            bench = None
        bench = self._benches[key] = bench or JudgeBench(request, self._pool, self._store)
        return bench

    async def close(self) -> None:
        """Closes all benches."""
        benches = list(self._benches.values())
        self._benches.clear()
        await asyncio.gather(*(bench.close() for bench in benches))

    def _forget(self, bench: JudgeBench) -> None:
        """The next who asks for its reference gets another; it may have been replaced already."""
        self._benches = {key: one for key, one in self._benches.items() if one is not bench}

    async def _drop(self, bench: JudgeBench) -> None:
        if not bench.users:
            await bench.close()

    async def close_idle(self) -> None:
        """Ends the judges that only wait for further candidates: they hold memory."""
        await self._close_if_idle(list(self._benches))

    async def _make_room(self) -> None:
        unused = [key for key, bench in self._benches.items() if bench.idle]
        await self._close_if_idle(unused[: max(0, len(self._benches) - MAX_JUDGES)])

    async def _close_if_idle(self, keys: Sequence[str]) -> None:
        """While one is closed another may be asked for again, or closed by somebody else."""
        for key in keys:
            bench = self._benches.get(key)
            if bench is not None and bench.idle:
                del self._benches[key]
                await bench.close()


def _key(request: EvaluationRequest) -> str:
    return wire.dumps([request.reference, request.workload, request.device, request.python])


def lost(bench: JudgeBench, error: EvaluationError) -> bool:
    """Whether ``error`` says only that a judge that had served before has died since: worth
    another try."""
    served_others = bench.served > (bench.asked == bench.served)
    return not bench.usable and served_others and "running the reference failed" in error.cause
