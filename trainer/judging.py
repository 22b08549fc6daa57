"""Who judges rollouts: one interface; a table of recorded evaluations, this machine, or a cluster behind it.

A `JudgePool` answers cases in order, each exactly once. A candidate that fails is an outcome; a case that
could not be judged is NOT_RUN with its reason, earns nothing, and is judged again when it is asked again.
This machine and the nodes of a cluster ask one `Judge`: it makes the candidate with the engine and judges it
in full, by the very request that an editor's offer rests on.
Not covered: which steps are tried (worlds.py), how work reaches a node (kernel_lsp/cluster).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kernel_lsp import config, interpreter, wire
from kernel_lsp.cluster import Cluster
from kernel_lsp.errors import CaptureError, ConfigError, EvaluationError, JobFailed, RewriteError
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.pipeline.opened import Opened
from kernel_lsp.pipeline.workshop import EngineWorkshop
from kernel_lsp.records import EvalStatus, Evaluation, Job, Step
from trainer import tasks
from trainer.records import Outcome, Status
from trainer.spaces import Space, looked_up

T = TypeVar("T")
MOST_OPEN = 4
"""Tasks whose engine stays: each takes half a gigabyte, and five seconds to open again."""
WIDTH = {"cuda": 4}
"""Cases at a time on one GPU: one is compiled and tried while another is timed. On a CPU one."""
QUIET_S = 30.0
"""When nothing was said for so long, a line tells how far it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One candidate to judge."""

    task: str
    steps: tuple[Step, ...] = ()
    """For a table, and for who makes the candidate of them."""
    request: EvaluationRequest | None = None
    """A candidate that is made already."""
    program: str | None = None
    """The task's file, which a live pool adds."""

    @property
    def id(self) -> str:
        told = wire.dumps([self.task, self.steps, self.request, self.program])
        return hashlib.sha256(told.encode()).hexdigest()[:24]


class JudgePool(Protocol):
    def judge(self, cases: Sequence[Case]) -> Coroutine[Any, Any, list[Outcome]]:
        """One outcome per case, in their order."""

    def close(self) -> Coroutine[Any, Any, None]: ...


class Table:
    """Looks everything up."""

    def __init__(self, spaces: Mapping[str, Space]) -> None:
        self._spaces = spaces
        self.asked = 0

    async def judge(self, cases: Sequence[Case]) -> list[Outcome]:
        self.asked += len(cases)
        return [looked_up(self._spaces[case.task], case.steps) for case in cases]

    async def close(self) -> None:
        pass


# --- one device ------------------------------------------------------------------------------------


class Judge:
    """One device, in this process: a cluster's worker too. Several cases may be under way."""

    def __init__(self, device: str, timeout_s: float = 300.0) -> None:
        """``device``: cuda or cpu. ``timeout_s``: of one evaluation. Caches are those of this machine."""
        settings = replace(config.load(None)[0], device=device, evaluate_timeout_s=timeout_s)
        self._pipeline = Pipeline(settings)
        self._python = interpreter.find(None, settings.python).path
        self._open: dict[str, _Held] = {}
        """The last one used is the last."""
        self._ending: set[asyncio.Task[None]] = set()

    async def do(self, work: Case) -> Outcome:
        try:
            if work.request is not None:
                request = replace(work.request, python=self._python)
                found = await self._pipeline.gate().evaluate(request)
                return outcome(found, complete=request.budget.compile_s > 0)
            return await self._made(work)
        except RewriteError as error:
            return Outcome(status=Status.REFUSED, complaint=str(error))
        except (CaptureError, EvaluationError) as error:
            return Outcome(status=Status.NOT_RUN, complaint=str(error))

    async def close(self) -> None:
        for held in self._open.values():
            self._end(held)
        self._open.clear()
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._pipeline.close()

    async def _made(self, case: Case) -> Outcome:
        if not case.program or not case.steps:
            return Outcome(status=Status.REFUSED, complaint="the reply made no candidate")
        async with self._task(case.task, case.program) as (one, workshop):
            candidate = await workshop.apply(case.steps)
            judged = await one.tournament.judged(candidate, full=True)
        return outcome(judged.proposal.evaluation, complete=True)

    @contextlib.asynccontextmanager
    async def _task(self, name: str, program: str) -> AsyncIterator[tuple[Opened, EngineWorkshop]]:
        """Stays open for the next candidates of the same task."""
        held = self._open.pop(program, None)
        if held is None:
            job = Job(
                text=program, path=f"{name}.py", qualname="Model", device=self._pipeline.settings.device
            )
            held = _Held(self._pipeline, job)
        self._open[program] = held
        held.users += 1
        try:
            yield await asyncio.shield(held.ready)
        finally:
            held.users -= 1
            idle = [key for key, one in self._open.items() if not one.users]
            for key in idle[: max(0, len(self._open) - MOST_OPEN)]:
                self._end(self._open.pop(key))

    def _end(self, held: _Held) -> None:
        held.over.set()
        self._ending.add(held.holding)
        held.holding.add_done_callback(self._ending.discard)


class _Held:
    """A task that one asyncio task opens and closes, whoever uses it in between."""

    def __init__(self, pipeline: Pipeline, job: Job) -> None:
        self.ready: asyncio.Future[tuple[Opened, EngineWorkshop]] = asyncio.get_running_loop().create_future()
        self.ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.over = asyncio.Event()
        self.users = 0
        self.holding = asyncio.create_task(self._hold(pipeline, job))

    async def _hold(self, pipeline: Pipeline, job: Job) -> None:
        try:
            async with pipeline.opened(job) as one:
                self.ready.set_result((one, EngineWorkshop(one.engine, one.prepared)))
                await self.over.wait()
        except Exception as error:  # for whoever waits to use it
            if self.ready.done():
                raise
            self.ready.set_exception(error)


# --- pools -----------------------------------------------------------------------------------------


class Local:
    """This machine, within this process. What was judged once is not judged again."""

    def __init__(
        self, device: str = "cpu", timeout_s: float = 300.0, programs: Mapping[str, str] | None = None
    ) -> None:
        """``programs``: files of the tasks, by name."""
        self._judge_of = partial(Judge, device, timeout_s)
        self._judge: Judge | None = None
        self._programs = programs or {}
        self._known: dict[str, asyncio.Task[Outcome]] = {}

    async def judge(self, cases: Sequence[Case]) -> list[Outcome]:
        self._judge = self._judge or self._judge_of()
        return list(await asyncio.gather(*(self._outcome(_filled(case, self._programs)) for case in cases)))

    async def close(self) -> None:
        """Also ends what is being judged."""
        for task in self._known.values():
            task.cancel()
        await asyncio.gather(*self._known.values(), return_exceptions=True)
        if self._judge is not None:
            await self._judge.close()

    async def _outcome(self, case: Case) -> Outcome:
        assert self._judge is not None
        if case.id not in self._known:
            self._known[case.id] = asyncio.create_task(self._judge.do(case))
        found = await asyncio.shield(self._known[case.id])
        if found.status is Status.NOT_RUN:
            self._known.pop(case.id, None)
        return found


class Clustered:
    """The GPUs (or CPUs) of a Ray cluster. What was judged once is not judged again."""

    def __init__(
        self,
        address: str,
        device: str = "auto",
        timeout_s: float = 300.0,
        programs: Mapping[str, str] | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """``address``: HOST:PORT, auto or local, see kernel_lsp.cluster."""
        make = partial(_on_node, timeout_s)
        width = max(WIDTH.values()) if device != "cpu" else 1
        self._cluster = Cluster(address=address, make=make, device=device, width=width, say=say)
        self._programs, self._say = programs or {}, say
        self._opened = False

    async def judge(self, cases: Sequence[Case]) -> list[Outcome]:
        """Raises ClusterError when there is no such cluster, or all of it is lost."""
        if not self._opened:
            await self._cluster.open()
            self._opened = True
        asked = [asyncio.ensure_future(self._outcome(_filled(case, self._programs))) for case in cases]
        telling = asyncio.create_task(self._tell(asked))
        try:
            return list(await asyncio.gather(*asked))
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def close(self) -> None:
        await self._cluster.close()

    async def _outcome(self, case: Case) -> Outcome:
        try:
            found: Outcome = await self._cluster.do(case.id, case, group=case.task)
        except JobFailed as error:
            found = Outcome(status=Status.NOT_RUN, complaint=str(error))
        if found.status is Status.NOT_RUN:
            self._cluster.forget(case.id)
        return found

    async def _tell(self, asked: Sequence[asyncio.Future[Outcome]]) -> None:
        while True:
            await asyncio.sleep(QUIET_S)
            done, doing = sum(one.done() for one in asked), self._cluster.doing
            self._say(f"{done} of {len(asked)} candidates judged, {len(doing)} under way")


class Apart:
    """A pool in a thread with a loop of its own: a gate's processes and a cluster's nodes live on while the
    trainer computes between two batches, whatever loop asks."""

    def __init__(self, make: Callable[[], JudgePool]) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="judging").start()
        self._pool = make()

    async def judge(self, cases: Sequence[Case]) -> list[Outcome]:
        """Cancelling it cancels what is judged."""
        return await self._there(self._pool.judge(cases))

    async def close(self) -> None:
        await self._there(self._pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _on_node(timeout_s: float, device: str) -> Judge:
    return Judge(device, timeout_s)


def _filled(case: Case, programs: Mapping[str, str]) -> Case:
    return replace(case, program=programs.get(case.task)) if case.steps else case


def programs(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Files of these tasks. Raises ConfigError when one is not there."""
    known = {task.name: task.source for task in tasks.load(folder).tasks}
    if missing := [name for name in names if name not in known]:
        raise ConfigError(
            f"judging.tasks: {folder} lacks {len(missing)} of {len(names)} tasks, such as {missing[0]}",
            "name the folder whose tasks the tables recorded",
        )
    return {name: known[name] for name in names}


def outcome(evaluation: Evaluation, *, complete: bool) -> Outcome:
    """The gate's verdict as a turn keeps it."""
    passed = evaluation.status is EvalStatus.PASSED
    times = {timing.provider: timing.median_ms for timing in evaluation.timings}
    return Outcome(
        status=Status(evaluation.status.value),
        correct=None if evaluation.status is EvalStatus.NOT_RUN else passed,
        speedups=dict(evaluation.speedups) if passed else {},
        complete=complete,
        candidate_ms=times.get("candidate"),
        evaluation_s=evaluation.seconds,
        complaint="" if passed else evaluation.detail,
    )
