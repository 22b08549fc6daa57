"""Who judges rollouts: one interface; a table of recorded evaluations, this machine, or a cluster
behind it.

A `JudgePool` answers cases in order, each exactly once. A candidate that fails is an outcome; a
case that could not be judged is NOT_RUN with its reason, earns nothing, and is judged again when
it is asked again. This machine and the nodes of a cluster ask the same `DeviceJudge` (judge.py),
so their outcomes are the same. Not covered: how work reaches a node, and what becomes of it when
the node is lost (kernel_lsp/cluster)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kernel_lsp.cluster import Cluster
from kernel_lsp.errors import ConfigError, JobFailed
from trainer.records import TurnOutcome, TurnStatus
from trainer.rollouts.judge import Case, DeviceJudge
from trainer.tasks import task_suites
from trainer.tasks.spaces import RecordedSpace, looked_up

T = TypeVar("T")
WIDTH = {"cuda": 4}
"""Cases at a time on one GPU: one is compiled and tried while another is timed. On a CPU one."""
QUIET_S = 30.0
"""When nothing was said for so long, a line tells how far it is."""


class JudgePool(Protocol):
    def judge(self, cases: Sequence[Case]) -> Coroutine[Any, Any, list[TurnOutcome]]:
        """One outcome per case, in their order."""

    def close(self) -> Coroutine[Any, Any, None]:
        """Ends what judges."""


class Table:
    """Looks everything up."""

    def __init__(self, spaces: Mapping[str, RecordedSpace]) -> None:
        self._spaces = spaces
        self.asked = 0

    async def judge(self, cases: Sequence[Case]) -> list[TurnOutcome]:
        """What was recorded for each case, in their order; counted in ``asked``."""
        self.asked += len(cases)
        return [looked_up(self._spaces[case.task], case.steps) for case in cases]

    async def close(self) -> None:
        """Nothing to end: no process judges."""


class LocalJudge:
    """This machine, within this process. What was judged once is not judged again."""

    def __init__(
        self,
        device: str = "cpu",
        timeout_s: float = 300.0,
        programs: Mapping[str, str] | None = None,
    ) -> None:
        """``programs``: files of the tasks, by name."""
        self._judge_of = partial(DeviceJudge, device, timeout_s)
        self._judge: DeviceJudge | None = None
        self._programs = programs or {}
        self._known: dict[str, asyncio.Task[TurnOutcome]] = {}

    async def judge(self, cases: Sequence[Case]) -> list[TurnOutcome]:
        """One outcome per case, in their order; those that were judged before cost nothing."""
        self._judge = self._judge or self._judge_of()
        return list(
            await asyncio.gather(
                *(self._outcome(_fill_case(case, self._programs)) for case in cases)
            )
        )

    async def close(self) -> None:
        """Ends the pool, and what is being judged."""
        for task in self._known.values():
            task.cancel()
        await asyncio.gather(*self._known.values(), return_exceptions=True)
        if self._judge is not None:
            await self._judge.close()

    async def _outcome(self, case: Case) -> TurnOutcome:
        assert self._judge is not None
        if case.id not in self._known:
            self._known[case.id] = asyncio.create_task(self._judge.do(case))
        found = await asyncio.shield(self._known[case.id])
        if found.status is TurnStatus.NOT_RUN:
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

    async def judge(self, cases: Sequence[Case]) -> list[TurnOutcome]:
        """Raises ClusterError when there is no such cluster, or all of it is lost."""
        if not self._opened:
            await self._cluster.open()
            self._opened = True
        asked = [
            asyncio.ensure_future(self._outcome(_fill_case(case, self._programs))) for case in cases
        ]
        telling = asyncio.create_task(self._tell(asked))
        try:
            return list(await asyncio.gather(*asked))
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def close(self) -> None:
        """Ends the workers on all nodes."""
        await self._cluster.close()

    async def _outcome(self, case: Case) -> TurnOutcome:
        try:
            found: TurnOutcome = await self._cluster.do(case.id, case, group=case.task)
        except JobFailed as error:
            found = TurnOutcome(status=TurnStatus.NOT_RUN, complaint=str(error))
        if found.status is TurnStatus.NOT_RUN:
            self._cluster.forget(case.id)
        return found

    async def _tell(self, asked: Sequence[asyncio.Future[TurnOutcome]]) -> None:
        while True:
            await asyncio.sleep(QUIET_S)
            done, doing = sum(one.done() for one in asked), self._cluster.doing
            self._say(f"{done} of {len(asked)} candidates judged, {len(doing)} under way")


class Apart:
    """A pool in a thread with a loop of its own: a gate's processes and a cluster's nodes live on
    while the trainer computes between two batches, whatever loop asks."""

    def __init__(self, make: Callable[[], JudgePool]) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, daemon=True, name="judging").start()
        self._pool = make()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def judge(self, cases: Sequence[Case]) -> list[TurnOutcome]:
        """Cancelling it cancels what is judged."""
        return await self._there(self._pool.judge(cases))

    async def close(self) -> None:
        """Ends the pool, then its thread's loop."""
        await self._there(self._pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _on_node(timeout_s: float, device: str) -> DeviceJudge:
    return DeviceJudge(device, timeout_s)


def _fill_case(case: Case, programs: Mapping[str, str]) -> Case:
    return replace(case, program=programs.get(case.task)) if case.steps else case


def programs(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Files of these tasks. Raises ConfigError when one is not there."""
    known = {task.name: task.source for task in task_suites.load(folder).tasks}
    if missing := [name for name in names if name not in known]:
        raise ConfigError(
            f"judging.tasks: {folder} lacks {len(missing)} of {len(names)} tasks, such as "
            f"{missing[0]}",
            "name the folder whose tasks the tables recorded",
        )
    return {name: known[name] for name in names}
