"""Whose turn it is on a device: one user at a time, and the GPU's other users go first.

    async with device_sharing.turn("cuda", exclusive=True, report=report) as turn:
        ...                                     # judge and time
        environment["device_state"] = turn.states

A turn begins when (1) no other kernel-lsp of this user on this machine has the device (a lock per
device, released by the kernel when its holder dies), (2) this hour's allowance is not used up, (3)
no other process is busy on the GPU. During a turn a watcher looks four times a second; when a
neighbor becomes busy the turn is cancelled, and `persist` repeats it later. In one process any
number of shared turns run together, an exclusive one runs alone. Turns must not be nested.

CUDA has no priorities between processes: yielding means to stop. Not covered: other users'
kernel-lsp, who are neighbors like any other; a neighbor that neither NVML nor /proc shows (nvml.py
says when that is). On a CPU only exclusive turns are taken, on the interpreter none: nothing is
timed there."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import platform
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kernel_lsp import config, phases
from kernel_lsp.config import Settings
from kernel_lsp.errors import Busy
from kernel_lsp.evaluator.sharing import nvml
from kernel_lsp.evaluator.sharing.allowance import continues_at, used_s
from kernel_lsp.evaluator.sharing.locks import LockFiles, device_key, try_lock
from kernel_lsp.evaluator.sharing.memory_claims import MemoryClaims, MemoryNeed
from kernel_lsp.evaluator.sharing.nvml import Gpu, Neighbor, Neighborhood
from kernel_lsp.records import Progress, Report

T = TypeVar("T")
BUSY_PERCENT = 10
"""A desktop's compositor stays below, a training run is far above."""
BUSY_CPU_PERCENT = 50
"""Of one core, where the GPU's counters are silent: a process that feeds a GPU launches or spins,
and a notebook that merely keeps a model loaded sleeps."""
LOOK_S = 0.25
LOCK_POLL_S = 0.05
CALM_LOOKS = 4
"""Calm looks in a row after a busy one: a training run rests between its batches."""
OWN_ECHO_S = 1.5
"""The driver's utilization covers up to a second, so right after a turn it still shows our own
work."""
MAX_HOLD_S = 30.0
"""Shared turns that overlap without end let another editor that waits through after this long."""
SAY_AGAIN_S = 10.0
REPEATS = 2
MEMORY_LIMIT = "KERNEL_LSP_GPU_MEMORY_MB"
"""Read by devices/cuda.py in the child; without it, the child takes a share of what is free."""
IOPRIO_IDLE, IOPRIO_WHO_PGRP = 3 << 13, 2
IOPRIO_SET = {"x86_64": 251, "aarch64": 30}


class Disturbed(Busy):
    """Another process became busy on the GPU during a turn: nothing measured in it counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharingRules:
    """How to behave."""

    data_dir: str
    when_busy: str = "wait"
    """wait, skip or ignore."""
    wait_s: float = 300.0
    minutes_per_hour: float | None = None
    """None: not rationed."""
    memory_mb: int | None = None
    """What each process of ours may allocate on the GPU; None: a share of what is free."""
    lowest_priority: bool = False

    @classmethod
    def of(cls, settings: Settings, *, background: bool = False) -> SharingRules:
        """The rules by these settings: only what nobody waits for is rationed and runs at the
        lowest priority."""
        rationed = background and settings.gpu_minutes_per_hour < 60
        return cls(
            data_dir=settings.data_dir,
            when_busy=settings.gpu_when_busy,
            wait_s=settings.gpu_wait_s,
            minutes_per_hour=settings.gpu_minutes_per_hour if rationed else None,
            memory_mb=settings.gpu_memory_mb,
            lowest_priority=background,
        )


@dataclass(kw_only=True)
class DeviceTurn:
    """The right to use a device, for as long as the block lasts."""

    device_sharing: DeviceSharing
    device: str
    waited_s: float = 0.0
    """Nobody's fault: not to be counted against a limit on the work."""
    states: dict[str, Any] = field(default_factory=dict)
    """What the driver said at the beginning (and whenever `sample` was called), for the
    evidence."""
    notes: list[str] = field(default_factory=list)
    disturbed_by: str | None = None

    async def sample(self, moment: str) -> None:
        """Notes the device's state under the name of a moment, such as before and after."""
        self.states[moment] = await self.device_sharing.sample(self.device)


class DeviceSharing:
    """The turns of one process under one set of rules. Keep one, or locks between its own users
    poll."""

    def __init__(
        self,
        rules: SharingRules,
        *,
        gpu: Gpu | None = None,
        neighborhood: Neighborhood | None = None,
    ) -> None:
        self.rules = rules
        self._gpu, self._neighborhood = gpu, neighborhood
        self._lanes: dict[str, _Lane] = {}

    @asynccontextmanager
    async def turn(
        self,
        device: str,
        *,
        exclusive: bool = True,
        report: Report | None = None,
        purpose: str = "",
    ) -> AsyncIterator[DeviceTurn]:
        """Wait for the device and hold it. ``device`` is cuda, cpu or interpreter. ``purpose``:
        what is judged, for those who wait meanwhile.

        Raises EvaluationError when it stays busy or the hour's allowance is used up, Disturbed out
        of the block when a neighbor becomes busy (what runs in it is cancelled first)."""
        turn = DeviceTurn(device_sharing=self, device=device)
        if device == "interpreter" or (device == "cpu" and not exclusive):
            yield turn
            return
        lane = await self._lane(device)
        start = time.monotonic()
        async with lane.entered(exclusive, report or (lambda progress: None), purpose):
            turn.waited_s = time.monotonic() - start
            phases.note("wait.device", start)
            await turn.sample("begin")
            async with lane.watched(turn):
                yield turn

    @asynccontextmanager
    async def memory(self, device: str, need: MemoryNeed, report: Report) -> AsyncIterator[None]:
        """Wait until the jobs of all processes leave so much of a device's memory, and keep it for
        the block; on an interpreter that is the machine's own."""
        lane = await self._lane("cuda" if device == "cuda" else "cpu")
        start = time.monotonic()
        async with MemoryClaims(lane.files.claims).claimed(need, _Teller(report)):
            phases.note("wait.memory", start)
            yield

    @property
    def environment(self) -> dict[str, str]:
        """What children have to know of the rules."""
        limit = self.rules.memory_mb
        return {} if limit is None else {MEMORY_LIMIT: str(limit)}

    def settle(self, child: int) -> None:
        """Give a new child (its process group) its place among the machine's processes."""
        if self.rules.lowest_priority:
            lower_priority(child)

    async def persist(self, work: Callable[[], Awaitable[T]], report: Report | None = None) -> T:
        """The result of ``work`` (which takes its turns itself), repeated when it was disturbed."""
        for left in reversed(range(REPEATS + 1)):
            try:
                return await work()
            except Disturbed as error:
                if not left or self.rules.when_busy != "wait":
                    raise
                if report:
                    why = error.cause.removeprefix("could not judge: ")
                    report(Progress(phase="queue", message=f"{why}: it goes first, then once more"))
        raise AssertionError("unreachable")

    async def sample(self, device: str) -> dict[str, Any]:
        """What can be read about the device now, for the evidence; about a CPU, its load."""
        if device != "cuda":
            return {"load": [round(value, 2) for value in os.getloadavg()]}
        gpu, neighborhood = await self._driver()
        state = await asyncio.to_thread(gpu.sample) if gpu else {}
        return {**state, "other_processes": len(await asyncio.to_thread(neighborhood.look))}

    async def _driver(self) -> tuple[Gpu | None, Neighborhood]:
        """Opened at the first use of a GPU: without persistence mode that takes a second."""
        if self._neighborhood is None:
            found = await asyncio.to_thread(nvml.find)
            self._gpu = found if isinstance(found, Gpu) else None
            self._neighborhood = Neighborhood(self._gpu)
        return self._gpu, self._neighborhood

    async def _lane(self, device: str) -> _Lane:
        driver = await self._driver() if device == "cuda" else None
        if device not in self._lanes:
            key = device_key(device, driver[0] if driver else None)
            self._lanes[device] = _Lane(self.rules, LockFiles(self.rules.data_dir, key), driver)
        return self._lanes[device]


class _Lane:
    """The turns of this process on one device, under one lock file."""

    def __init__(
        self, rules: SharingRules, files: LockFiles, driver: tuple[Gpu | None, Neighborhood] | None
    ) -> None:
        self.rules, self.files = rules, files
        self._gpu: Gpu | None = driver[0] if driver else None
        self._neighborhood: Neighborhood | None = driver[1] if driver else None
        self._changed = asyncio.Condition()
        self._taking = asyncio.Lock()
        self._shared, self._exclusive, self._exclusive_waiting = 0, False, 0
        self._held_since: float | None = None
        """time.time(); None while this process does not have the device."""
        self._watcher: asyncio.Task[None] | None = None
        self._turns: dict[int, tuple[DeviceTurn, asyncio.Task[Any]]] = {}
        self._known: frozenset[int] = frozenset()
        """Neighbors that had a context already when we took the device."""

    # --- within this process -----------------------------------------------------------------

    @asynccontextmanager
    async def entered(self, exclusive: bool, report: Report, purpose: str) -> AsyncIterator[None]:
        """Hold the device while the block runs: alone, or beside others of this process."""
        await self._reserve(exclusive)
        try:
            async with self._taking:
                if self._held_since is None:
                    await self._take(_Teller(report), purpose)
            yield
        finally:
            if exclusive:
                self._exclusive = False
            else:
                self._shared -= 1
            if not self._exclusive and not self._shared:
                self._release()
            await asyncio.shield(self._tell())

    async def _reserve(self, exclusive: bool) -> None:
        async with self._changed:
            self._exclusive_waiting += exclusive
            try:
                await self._changed.wait_for(lambda: self._fits(exclusive))
            finally:
                self._exclusive_waiting -= exclusive
            if exclusive:
                self._exclusive = True
            else:
                self._shared += 1

    def _fits(self, exclusive: bool) -> bool:
        if self._exclusive or (exclusive and self._shared):
            return False
        return exclusive or not (
            self._exclusive_waiting or (self._shared and self._kept_from_others())
        )

    def _kept_from_others(self) -> bool:
        held_s = 0.0 if self._held_since is None else time.time() - self._held_since
        return held_s > MAX_HOLD_S and self.files.wanted()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # --- across processes --------------------------------------------------------------------

    async def _take(self, say: _Teller, purpose: str) -> None:
        """Raises EvaluationError; holds nothing then, nor when it is cancelled."""
        await self._lock(say, purpose)
        try:
            self._require_allowance()
            if self._neighborhood is not None:
                await self._wait_until_calm(say)
                self._watcher = asyncio.create_task(self._watch())
        except BaseException:  # also a cancellation: the lock must not stay behind
            self.files.lock.release()
            raise
        self._held_since = time.time()

    def _release(self) -> None:
        if self._held_since is None:  # it never got so far
            return
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        self.files.ledger.add(self._held_since, max(0.0, time.time() - self._held_since))
        self._held_since = None
        self.files.lock.release()

    async def _lock(self, say: _Teller, purpose: str) -> None:
        holder = ""
        try:
            for lock in (self.files.queue, self.files.lock):
                while not try_lock(lock):
                    holder = self.files.in_words() or holder  # who is just leaving has no name
                    say(f"waiting for kernel-lsp{holder} on the same device")
                    await asyncio.sleep(LOCK_POLL_S)
        finally:
            self.files.queue.release()
        self.files.sign(purpose)

    def _require_allowance(self) -> None:
        minutes, now = self.rules.minutes_per_hour, time.time()
        if minutes is None or self._neighborhood is None:
            return
        uses = self.files.ledger.uses()
        if used_s(uses, now) >= minutes * 60:
            when = time.strftime(
                "%H:%M", time.localtime(continues_at(uses, minutes * 60, now) + 60)
            )
            raise Busy(
                f"could not judge: this hour's {minutes:g} minutes of the GPU are used",
                f"the background may use it again at {when}; set gpu_minutes_per_hour to 60 for "
                f"no limit",
            )

    # --- neighbors ---------------------------------------------------------------------------

    async def _look(self) -> tuple[Neighbor, ...]:
        assert self._neighborhood is not None
        return await asyncio.to_thread(self._neighborhood.look)

    async def _busy_now(self) -> list[str]:
        """Who is busy while nothing of ours runs; whoever is there is known from now on."""
        echo = time.time() - self.files.ledger.last_end() < OWN_ECHO_S
        utilization = (
            await asyncio.to_thread(self._gpu.utilization) if self._gpu and not echo else None
        )
        neighbors = await self._look()
        assert self._neighborhood is not None
        if utilization is None and any(n.sm_percent is None for n in neighbors):
            await asyncio.sleep(LOOK_S)  # CPU time needs two looks
            neighbors = await self._look()
        self._known = frozenset(neighbor.pid for neighbor in neighbors)
        return busy_before(neighbors, utilization, sees_all=self._neighborhood.sees_all)

    async def _wait_until_calm(self, say: _Teller) -> None:
        if self.rules.when_busy == "ignore":
            await self._busy_now()
            return
        deadline, calm = time.monotonic() + self.rules.wait_s, CALM_LOOKS
        while True:
            busy = await self._busy_now()
            calm = 0 if busy else calm + 1
            if calm >= CALM_LOOKS:
                return
            if busy:
                say(f"waiting for the GPU: {', '.join(busy)} is busy")
            if busy and (self.rules.when_busy == "skip" or time.monotonic() > deadline):
                raise Busy(
                    f"could not judge: the GPU is busy with {', '.join(busy)}",
                    "try again when it is done, or set gpu_when_busy (wait, skip, ignore) and "
                    "gpu_wait_s",
                )
            await asyncio.sleep(LOOK_S)

    async def _watch(self) -> None:
        """Until the device is released: a busy neighbor ends every turn (or is noted, as the rules
        say)."""
        while True:
            await asyncio.sleep(LOOK_S)
            if busy := busy_during(await self._look(), self._known):
                who = ", ".join(busy)
                for turn, task in list(self._turns.values()):
                    note = f"{who} was busy on the GPU meanwhile"
                    if self.rules.when_busy == "ignore":
                        turn.notes = [note]
                    elif turn.disturbed_by is None:
                        turn.disturbed_by = who
                        task.cancel(note)

    @asynccontextmanager
    async def watched(self, turn: DeviceTurn) -> AsyncIterator[None]:
        """Like asyncio.timeout: the watcher's cancellation leaves the block as Disturbed."""
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._turns[id(turn)] = (turn, task)
        try:
            yield
        except asyncio.CancelledError:
            if turn.disturbed_by is None or task.uncancel() > before:
                raise
            raise _disturbance(turn.disturbed_by) from None
        finally:
            del self._turns[id(turn)]


def _disturbance(who: str) -> Disturbed:
    remedy = "try again when it is done, or set gpu_when_busy = 'ignore'"
    return Disturbed(f"could not judge: the GPU became busy with {who}", remedy)


def busy_before(
    neighbors: Sequence[Neighbor], utilization: int | None, *, sees_all: bool
) -> list[str]:
    """Neighbors that are busy, while none of ours runs: so all of ``utilization`` is theirs."""
    if not neighbors and not sees_all and (utilization or 0) >= BUSY_PERCENT:
        return [f"a process of another container ({utilization} %)"]

    def busy(neighbor: Neighbor) -> bool:
        if neighbor.sm_percent is not None:
            return neighbor.sm_percent >= BUSY_PERCENT
        if utilization is not None:
            return utilization >= BUSY_PERCENT
        return (neighbor.cpu_percent or 0) >= BUSY_CPU_PERCENT

    return [str(neighbor) for neighbor in neighbors if busy(neighbor)]


def busy_during(neighbors: Sequence[Neighbor], known: frozenset[int]) -> list[str]:
    """Neighbors that are busy while we are, too: newcomers count unless the driver says that they
    rest."""

    def busy(neighbor: Neighbor) -> bool:
        if neighbor.sm_percent is not None:
            return neighbor.sm_percent >= BUSY_PERCENT
        return neighbor.pid not in known or (neighbor.cpu_percent or 0) >= BUSY_CPU_PERCENT

    return [str(neighbor) for neighbor in neighbors if busy(neighbor)]


class _Teller:
    """Says the same thing only now and then: percentages change with every look."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._last: tuple[str, float] = ("", 0.0)

    def __call__(self, message: str) -> None:
        gist, now = re.sub(r"\(\d+ %.*?\)", "", message), time.monotonic()
        if gist != self._last[0] or now - self._last[1] > SAY_AGAIN_S:
            self._last = (gist, now)
            self._report(Progress(phase="queue", message=message))


def lower_priority(group: int) -> None:
    """Let a process group have CPU and disk only when nobody else wants them. Needs no root.

    The weight counts within a session alone where the kernel groups by session (autogroup), so the
    session's own is lowered as well.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PGRP, group, 19)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(group, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path(f"/proc/{group}/autogroup").write_text("19")
    if number := IOPRIO_SET.get(platform.machine()):
        ctypes.CDLL(None).syscall(number, IOPRIO_WHO_PGRP, group, IOPRIO_IDLE)


# --- for the doctor ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceStatus:
    """How things stand on the GPU, without taking it."""

    gpu: str | None
    driver: str | None
    problem: str | None
    """Why NVML cannot be asked."""
    neighbors: tuple[str, ...]
    holder: int | None
    used_minutes: float
    """Within the last hour."""


def status(settings: Settings) -> DeviceStatus:
    """What there is to say of the GPU: its name, who uses it, who holds its lock, minutes that we
    have used of this hour."""
    found = nvml.find()
    gpu = found if isinstance(found, Gpu) else None
    files = LockFiles(settings.data_dir, device_key("cuda", gpu))
    return DeviceStatus(
        gpu=gpu.name if gpu else None,
        driver=gpu.driver if gpu else None,
        problem=found if isinstance(found, str) else None,
        neighbors=tuple(map(str, Neighborhood(gpu).look())),
        holder=files.holder(),
        used_minutes=round(used_s(files.ledger.uses(), time.time()) / 60, 1),
    )


def default() -> DeviceSharing:
    """Device sharing under the user's own settings, for someone who waits."""
    return DeviceSharing(SharingRules.of(config.load(None)[0]))
