"""The gate: evaluations one after another or side by side, with warm processes in between.

    async with Gate() as gate:
        evaluation = await gate.evaluate(request, report)

It keeps zygotes (pool.py) and judges with opened references (judges.py) until nothing has been
asked for `idle_s`; then no process and no GPU memory of it is left. How one candidate is judged is
cascade.py's. On a GPU several candidates are tried at the same time, and all stand still while one
is timed (`alone`); on a CPU they come one after another, because trials would disturb the times.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from shutil import disk_usage
from typing import Any

from kernel_lsp import phases, scratch
from kernel_lsp.confinement import NOT_LINUX, NOT_LINUX_REMEDY
from kernel_lsp.errors import EvaluationError, OutOfMemory, Unconfined, boundary
from kernel_lsp.evaluator import cascade, evidence, judges, profiles, tuning
from kernel_lsp.evaluator.findings import PartialEvaluation, Rejected
from kernel_lsp.evaluator.processes.compiled import CompiledKernels
from kernel_lsp.evaluator.processes.pool import ZygotePool
from kernel_lsp.evaluator.processes.sandbox import Party
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, DeviceTurn, default
from kernel_lsp.evaluator.sharing.memory_claims import MemoryNeed
from kernel_lsp.evaluator.sharing.room import Room
from kernel_lsp.interpreter import Probe
from kernel_lsp.process import Child, StartChild
from kernel_lsp.records import (
    COMPILE,
    EAGER,
    EvalStatus,
    Evaluation,
    Evidence,
    Numerics,
    Progress,
    Report,
)

COMPILED = "compiled"
"""Folder of the data folder where compiled kernels are kept for every gate."""
MIN_DISK_BYTES = 2**24
"""What a judgement writes at least on its way: less is a full disk."""
IDLE_S = 30.0
CORES_PER_CANDIDATE = 2
"""A candidate is a worker and a timer that prepares beside it."""


class Gate:
    """Warm processes and a queue. Make one per process; end it with :meth:`close` or `async
    with`."""

    def __init__(
        self,
        *,
        device_sharing: DeviceSharing | None = None,
        idle_s: float = IDLE_S,
        cache: Path | None = None,
        readable: Iterable[Path] = (),
    ) -> None:
        """``cache``: a folder for compiled kernels; None compiles in every process anew.
        ``readable``: see `ZygotePool`; only a matter of time. Raises Unconfined where the system
        is not Linux."""
        if sys.platform != "linux":
            raise Unconfined(NOT_LINUX, NOT_LINUX_REMEDY)
        self.device_sharing = device_sharing or default()
        self._store = CompiledKernels(cache) if cache else None
        self._idle_s = idle_s
        self._pool = ZygotePool(self.device_sharing, readable)
        self._judges = judges.Judges(self._pool, self._store)
        beside = max(1, len(os.sched_getaffinity(0)) // CORES_PER_CANDIDATE)
        self._places = {"cuda": asyncio.Semaphore(beside), "cpu": asyncio.Semaphore(1)}
        self._room = Room()
        self._working: list[str] = []
        """What is judged now, for those who wait."""
        self._running = 0
        self._limits: set[asyncio.Timeout] = set()
        self._warming: set[asyncio.Task[None]] = set()
        self._resting: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Gate:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every process. The gate may be used again; it is only cold then."""
        if self._resting is not None:
            self._resting.cancel()
        if self._ending is not None and self._ending is not asyncio.current_task():
            await self._ending
        for warming in self._warming:
            warming.cancel()
        await asyncio.gather(*self._warming, return_exceptions=True)
        await self._judges.close()
        await self._pool.close()

    async def elsewhere(self) -> Probe | None:
        """The interpreter of another machine that judges; None: this machine judges."""
        return None

    def warm(self, python: str) -> None:
        """Begin to import torch, and what `forks` and baselines need, for evaluations that are
        likely to come; no failure of it matters."""
        warming = asyncio.create_task(self._warm(python))
        self._warming.add(warming)
        warming.add_done_callback(self._warming.discard)

    async def _warm(self, python: str) -> None:
        with contextlib.suppress(EvaluationError, OSError):
            async with self._in_use():
                await self._pool.warm(python)

    async def evaluate(
        self,
        request: EvaluationRequest,
        report: Report | None = None,
        keep: evidence.Keep | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Evaluation:
        """Judge one candidate. Cancelling the task ends its processes.

        ``keep`` receives everything the verdict rests on, once, before this returns. ``wanted`` is
        asked before the timing, which others wait for; when it says no, Withdrawn is raised.
        Raises EvaluationError when the *reference* cannot be judged by (it crashes, is random in a
        way no seed controls, has no inputs …); whatever a candidate does is a result."""
        with boundary(EvaluationError, "could not judge: the evaluator itself failed"):
            found = await self._evidence_of(request, report or (lambda progress: None), wanted)
        if keep:
            keep(found)
        return found.evaluation

    async def _evidence_of(
        self, request: EvaluationRequest, report: Report, wanted: Callable[[], bool]
    ) -> Evidence:
        """The verdict on one candidate with what it rests on. A gate elsewhere asks for it there."""
        request = evidence.with_seed(self._judges.seeded(request))
        async with self._at_work(request.device, request.reference.entry, report):
            found, evaluation = await self._with_room(request, report, wanted)
        return evidence.gather(request, found, evaluation)

    @contextlib.asynccontextmanager
    async def expecting(
        self, request: EvaluationRequest, report: Report | None = None
    ) -> AsyncIterator[Callable[[], None]]:
        """Make beside the block what the first candidate for this reference will need: judge,
        session, timed baselines and a worker. The caller's function ends that at once, when there
        will be no candidate.

        Nothing is made on a CPU where something else is being judged, which it would disturb. No
        failure of it matters: whatever is missing is made when a candidate comes."""
        making = asyncio.create_task(self._expect(request, report or (lambda progress: None)))
        making.add_done_callback(lambda made: made.cancelled() or made.exception())  # it is seen

        def give_up() -> None:
            if not making.cancelling():  # a second time would cut short what ends its processes
                making.cancel()

        try:
            yield give_up
        finally:
            give_up()
            await asyncio.wait([making])  # who is cancelled here does not cancel that either

    async def _expect(self, request: EvaluationRequest, report: Report) -> None:
        async with self._in_use(), self._judges.expecting(request) as bench:
            if request.device == "cuda":
                async with asyncio.timeout(None) as limit:
                    purpose = request.reference.entry
                    turns = self._turns(request.device, PartialEvaluation(), limit, report, purpose)
                    async with turns.present():
                        await bench.expect(request)
            elif not self._places["cpu"].locked():
                await bench.expect(request)
            await asyncio.Event().wait()  # it is kept until the job ends

    @contextlib.asynccontextmanager
    async def device_turn(
        self,
        device: str,
        *,
        exclusive: bool,
        limit: asyncio.Timeout,
        report: Report,
        purpose: str = "",
    ) -> AsyncIterator[DeviceTurn]:
        """The right to use a device; waiting for it is not counted against the evaluation's
        time. ``purpose``: see `DeviceSharing.turn`."""
        loop, when = asyncio.get_running_loop(), limit.when()
        left = None if when is None else when - loop.time()
        limit.reschedule(None)
        async with self.device_sharing.turn(
            device, exclusive=exclusive, report=report, purpose=purpose
        ) as turn:
            limit.reschedule(None if left is None else loop.time() + left)
            yield turn

    @contextlib.asynccontextmanager
    async def alone(
        self, child: Child, limit: asyncio.Timeout | None = None, *, anew: bool = False
    ) -> AsyncIterator[None]:
        """Hold every other child of this gate that uses the GPU; no other evaluation's time passes.

        ``limit``: the time limit of whoever asks, which goes on. ``anew``: see
        `ExclusiveTiming.alone`.
        """
        async with self._pool.quiet.alone(child, anew=anew):
            start = time.monotonic()
            try:
                yield
            finally:
                for other in self._limits - {limit}:
                    if (when := other.when()) is not None and not other.expired():
                        other.reschedule(when + time.monotonic() - start)

    def _turns(
        self,
        device: str,
        found: PartialEvaluation,
        limit: asyncio.Timeout,
        report: Report,
        purpose: str,
    ) -> cascade.EvaluationTurns:
        """On a GPU the device is held from the first trial to the last timing, and what is timed
        runs alone; on a CPU trials may run beside other editors' and timing has it for itself."""

        @contextlib.asynccontextmanager
        async def turn(exclusive: bool) -> AsyncIterator[None]:
            async with self.device_turn(
                device, exclusive=exclusive, limit=limit, report=report, purpose=purpose
            ) as held:
                found.environment["device_state"] = held.states
                yield
                await held.sample("end")
                for note in held.notes:
                    found.check("device-to-itself", None, note)

        here, nothing = lambda: turn(False), contextlib.nullcontext
        if device == "cuda":
            return cascade.EvaluationTurns(
                present=here, timing=nothing, alone=lambda party: self.alone(party.child, limit)
            )
        return cascade.EvaluationTurns(
            present=nothing, timing=lambda: turn(True), alone=lambda party: nothing()
        )

    def _after_others(
        self, bench: judges.JudgeBench, turns: cascade.EvaluationTurns, report: Report
    ) -> cascade.EvaluationTurns:
        """On a CPU, timing waits for baselines that are being made for another job."""

        @contextlib.asynccontextmanager
        async def timing() -> AsyncIterator[None]:
            await self._judges.others_are_made(bench, report)
            async with turns.timing():
                yield

        return replace(turns, timing=timing)

    @contextlib.asynccontextmanager
    async def tuner(
        self, request: tuning.TuneRequest, report: Report | None = None
    ) -> AsyncIterator[tuning.TunerClient]:
        """A process that says which of many variants are worth judging. On a CPU nothing else is
        judged meanwhile. Raises TunerLost, also out of the block."""
        say = report or (lambda progress: None)
        place = self._at_work(request.device, request.reference.entry, say)
        async with place, asyncio.timeout(None) as limit:
            purpose = request.reference.entry
            turns = self._turns(request.device, PartialEvaluation(), limit, say, purpose)

            @contextlib.asynccontextmanager
            async def alone(party: Party) -> AsyncIterator[None]:
                quiet = (
                    self.alone(party.child, limit, anew=True)
                    if request.device == "cuda"
                    else turns.timing()
                )
                async with quiet:
                    yield

            async with (
                turns.present(),
                tuning.open_tuner(request, self._pool, self._store, alone, say) as tuner,
            ):
                yield tuner

    @contextlib.asynccontextmanager
    async def forks(self) -> AsyncIterator[StartChild]:
        """How other confined children are started from what is warm here; it stays warm for the
        block."""
        async with self._in_use():
            yield functools.partial(self._pool.start, environment={}, imports="compiler")

    @contextlib.asynccontextmanager
    async def _at_work(self, device: str, purpose: str, report: Report) -> AsyncIterator[None]:
        """One of the places; who waits for one says who has them."""
        begin = time.monotonic()
        place = self._places["cuda" if device == "cuda" else "cpu"]
        if place.locked() and (names := ", ".join(sorted(set(self._working)))):
            report(Progress(phase="queue", message=f"waiting until {names} is judged"))
        async with self._in_use(), place:
            phases.note("wait.place", begin)
            self._working.append(purpose)
            try:
                yield
            finally:
                self._working.remove(purpose)

    @contextlib.asynccontextmanager
    async def _in_use(self) -> AsyncIterator[None]:
        """The last one to leave starts the clock after which everything ends."""
        if self._resting is not None:
            self._resting.cancel()
        if self._ending is not None:
            await self._ending
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                loop = asyncio.get_running_loop()
                self._resting = loop.call_later(self._idle_s, self._rest)

    def _rest(self) -> None:
        self._ending = asyncio.create_task(self.close())

    async def _with_room(
        self, request: EvaluationRequest, report: Report, wanted: Callable[[], bool]
    ) -> tuple[PartialEvaluation, Evaluation]:
        """Beside others; where memory does not suffice, once more alone, without the judges that
        wait for further candidates. Raises OutOfMemory when that does not suffice either."""

        async def judged() -> tuple[PartialEvaluation, Evaluation]:
            return await self.device_sharing.persist(
                lambda: self._judged(request, report, wanted), report
            )

        try:
            async with self._room.beside_others():
                return await judged()
        except OutOfMemory as error:
            waits = f"{error.cause}: waiting until nothing else is judged"
            report(Progress(phase="evaluate", message=waits.removeprefix("could not judge: ")))
        async with self._room.alone():
            await self._judges.close_idle()
            return await judged()

    async def _judged(
        self, request: EvaluationRequest, report: Report, wanted: Callable[[], bool]
    ) -> tuple[PartialEvaluation, Evaluation]:
        """One attempt, from nothing."""
        start = time.monotonic()
        found = PartialEvaluation()
        status, detail = EvalStatus.PASSED, ""
        try:
            cascade.refuse(request)
            cascade.scan(request, found)
            async with asyncio.timeout(None) as limit:  # `begin` sets it
                self._limits.add(limit)
                try:
                    await self._run(request, found, limit, report, wanted)
                finally:
                    self._limits.discard(limit)
        except Rejected as rejection:
            _require_disk(rejection)
            status, detail = rejection.status, rejection.detail
        except TimeoutError:
            status = EvalStatus.TIMED_OUT
            detail = (
                f"the evaluation took longer than {request.timeout_s:.0f} s (choose a smaller "
                f"workload)"
            )
        evaluation = _evaluation(request, found, status, detail)
        return found, replace(evaluation, seconds=round(time.monotonic() - start, 3))

    async def _run(
        self,
        request: EvaluationRequest,
        found: PartialEvaluation,
        limit: asyncio.Timeout,
        report: Report,
        wanted: Callable[[], bool],
    ) -> None:
        turns = self._turns(request.device, found, limit, report, request.reference.entry)
        claims = contextlib.AsyncExitStack()

        async def begin(opened: dict[str, Any]) -> None:
            need = MemoryNeed(
                needed_bytes=opened["needed_bytes"],
                total_bytes=opened["total_bytes"],
                purpose=request.reference.entry,
            )
            await claims.enter_async_context(
                self.device_sharing.memory(request.device, need, report)
            )
            limit.reschedule(asyncio.get_running_loop().time() + request.timeout_s)

        turns = replace(turns, begin=begin)
        for again in (True, False):
            try:
                async with (
                    self._judges.bench(request) as bench,
                    bench.place(request) as sandbox,
                    claims,
                ):
                    if request.device == "cpu":
                        turns = self._after_others(bench, turns, report)
                    await cascade.judge_candidate(
                        request, bench, sandbox, turns, found, report, wanted
                    )
                return
            except EvaluationError as error:
                if not (again and judges.lost(bench, error)):
                    raise


async def evaluate(
    request: EvaluationRequest, report: Report | None = None, keep: evidence.Keep | None = None
) -> Evaluation:
    """:meth:`Gate.evaluate` of a gate for this one candidate."""
    async with Gate() as gate:
        return await gate.evaluate(request, report, keep)


def _require_disk(rejection: Rejected) -> None:
    """A candidate that had no room on a disk which is full without it is not to blame. Raises
    EvaluationError."""
    folder = scratch.room().parent
    if os.strerror(errno.ENOSPC) in rejection.detail and disk_usage(folder).free < MIN_DISK_BYTES:
        raise EvaluationError(
            f"could not judge: the disk of {folder} is full: {rejection.detail}",
            "free space there, or set TMPDIR to a folder that has some",
        ) from rejection


def _evaluation(
    request: EvaluationRequest, found: PartialEvaluation, status: EvalStatus, detail: str
) -> Evaluation:
    passed = status is EvalStatus.PASSED
    return Evaluation(
        status=status,
        device=request.device,
        detail=detail,
        device_name=found.environment.get("device_name"),
        checks=tuple(found.checks),
        timings=found.timings if passed else (),
        speedups=found.speedups if passed else {},
        device_timings=found.device_timings if passed else (),
        device_speedups=found.device_speedups if passed else {},
        numerics=_numerics(found),
        kernels=found.kernels,
        peak_bytes=found.peak_bytes if passed else {},
        environment=found.environment,
        runs_as=COMPILE if request.workload.setting.compiled else EAGER,
        least_ms=found.least_ms if passed else None,
        shapes=tuple(found.shapes) if passed else (),
        unsure=found.unsure if passed else "",
        profiles=found.profiles if passed else (),
        coverage=profiles.coverage(found.profiles) if passed else None,
    )


def _numerics(found: PartialEvaluation) -> Numerics | None:
    if not found.errors:
        return None
    worst = max(found.errors, key=lambda e: e["candidate_error"] / max(e["tolerance"], 1e-300))
    return Numerics(
        candidate_error=worst["candidate_error"],
        reference_error=worst["reference_error"],
        tolerance=worst["tolerance"],
        num_trials=len(found.errors),
        distributions=tuple(dict.fromkeys(found.families)),
    )
