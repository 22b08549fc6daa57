"""Timing processes of one reference, and the spare among them.

A spare has the reference and its compiled baseline (the costliest thing in a judgement), and no
candidate has ever been there. It is made while a job still looks for its first candidate, with the
session that this candidate is going to have (`expect`), or left over by one that was refused
before it was loaded there; the next one then gives it the values of its own session
(`measure.renew`).

What times a candidate has met none before: a timer is given back only as long as nothing was
loaded into it. No torch. Not covered: who ends the spare of a reference that nobody asks about any
more (judges.py)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import evidence, measure
from kernel_lsp.evaluator.measure import JudgeSession, Ready
from kernel_lsp.evaluator.processes.sandbox import READY_S, Sandbox
from kernel_lsp.evaluator.request import EvaluationRequest

BeginTimer = Callable[[EvaluationRequest], Coroutine[Any, Any, JudgeSession]]
SessionSource = Callable[[], Awaitable[JudgeSession]]
MakeSession = Callable[[EvaluationRequest, SessionSource], Coroutine[Any, Any, Ready]]


class Timers:
    """The timers of one bench; it has at most one spare."""

    def __init__(self, begin: BeginTimer, make: MakeSession) -> None:
        """``begin`` opens a session with the judge, ``make`` a timer, and asks for the session's
        values once its process is there."""
        self._begin, self._make = begin, make
        self._early: tuple[EvaluationRequest, asyncio.Task[JudgeSession]] | None = None
        """The session of a candidate that is still looked for, and what asked for it."""
        self._early_matches = False
        self._spare: asyncio.Future[Ready] | None = None

    @property
    def making(self) -> asyncio.Future[Ready] | None:
        """The spare that is not ready yet."""
        return None if self._spare is None or self._spare.done() else self._spare

    # --- before there is a candidate ------------------------------------------------------

    async def expect(self, request: EvaluationRequest) -> None:
        """Make what the first candidate will need. What fails here is tried again when there is
        one."""
        if self._spare is None and self._early is None:
            request = evidence.with_seed(request)
            session = asyncio.create_task(self._begin(request))
            self._early = request, session
            self._spare = asyncio.create_task(self._make(request, lambda: asyncio.shield(session)))
            await asyncio.wait([self._spare])

    def seed(self, request: EvaluationRequest) -> int | None:
        """The secret seed of the session that waits for a candidate, when this may be the one;
        given once."""
        if self._early is None or self._early_matches or not _complete(request):
            return None
        early = self._early[0]
        self._early_matches = early.precision == request.precision
        return early.seed if self._early_matches else None

    async def session(self, request: EvaluationRequest) -> JudgeSession | None:
        """The session with this request's seed, once; None when no such is waiting."""
        if self._early is None or self._early[0].seed != request.seed:
            return None
        session, self._early = self._early[1], None
        return await session

    # --- for a candidate -----------------------------------------------------------------

    async def take(self, request: EvaluationRequest, session: JudgeSession) -> Ready:
        """A timer with this session's values. Raises EvaluationError."""
        if self._spare is not None and _complete(request):
            spare, self._spare = self._spare, None
            with contextlib.suppress(EvaluationError, OSError):
                # It only saves time: another is made then.
                return await self._renewed(request, spare, session)

        async def get_session() -> JudgeSession:
            return session

        return await self._renewed(
            request, asyncio.create_task(self._make(request, get_session)), session
        )

    async def _renewed(
        self, request: EvaluationRequest, making: asyncio.Future[Ready], session: JudgeSession
    ) -> Ready:
        try:
            ready = await asyncio.shield(making)
        except asyncio.CancelledError:  # nothing was loaded there: whoever is next may have it
            if self._spare is None and _complete(request):
                self._spare = making
            else:
                await _end(making)
            raise
        try:
            if ready.session is session:
                await ready.party.ask("ready", READY_S)  # it may have died meanwhile
            else:
                await measure.renew(request, ready, session)
        except BaseException:  # also a cancellation
            await ready.close()
            raise
        return ready

    async def give_back(self, ready: Ready) -> None:
        """A timer into which nothing was loaded."""
        if self._spare is not None or not ready.complete:
            await ready.close()
            return
        self._spare = asyncio.get_running_loop().create_future()
        self._spare.set_result(ready)

    async def close(self) -> None:
        """End the spare."""
        early, spare = self._early, self._spare
        self._early = self._spare = None
        if spare is not None:
            await _end(spare)
        if early is not None:
            early[1].cancel()
            await asyncio.gather(early[1], return_exceptions=True)


class Loan:
    """The timer of one judgement: given back when nothing was loaded into it, else ended.

    async with Loan(timers) as loan: ...
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._ready: Ready | None = None
        self._spent = False

    async def __aenter__(self) -> Loan:
        return self

    async def __aexit__(self, *failure: object) -> None:
        if self._ready is None:
            return
        if self._spent:
            await self._ready.close()
        else:
            await self._timers.give_back(self._ready)

    async def take(self, request: EvaluationRequest, session: JudgeSession) -> Ready:
        """A timing process that is ready for the request, for as long as it is lent. Raises
        EvaluationError."""
        self._ready = await self._timers.take(request, session)
        return self._ready

    def spend(self) -> Sandbox:
        """The sandbox of the timer; from now on things of a candidate are there."""
        assert self._ready is not None
        self._spent = True
        return self._ready.sandbox


def _complete(request: EvaluationRequest) -> bool:
    """Whether torch.compile is among its baselines; only such a timer is worth keeping."""
    return request.budget.compile_s > 0


async def _end(making: asyncio.Future[Ready]) -> None:
    making.cancel()
    done = (await asyncio.gather(making, return_exceptions=True))[0]
    if isinstance(done, Ready):
        await done.close()
