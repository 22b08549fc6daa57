"""Judge and workers as child processes: folders, limits, and what their deaths mean. No torch.

Every party has a scratch folder of its own. The worker may read the judge's outbox (inputs only);
nobody may read the judge's memory. All of it is gone when the `with` block ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from kernel_lsp import leftovers, phases, process, scratch, wire
from kernel_lsp.errors import EvaluationError, OutOfMemory, WorkerLost
from kernel_lsp.evaluator.processes import crashes, hoarding
from kernel_lsp.evaluator.processes.compiled import HEADERS, CompiledKernels
from kernel_lsp.evaluator.processes.pool import INTERPRETED, ZygotePool
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.snapshots import store

MEMORY_SHARE = 0.8
SPARE_PROCESSES = 512
"""Threads and processes a child may add to what the user already runs: torch.compile needs about
60."""
READY_S = 120.0
"""For importing torch from a cold disk, or a context on a machine where many are made. Nothing of
a reference or a candidate runs yet, so no limit of theirs counts."""
DISK_BYTES = 2 * 1024**3
FETCHED = "fetched"
"""Folder beside the scratch folders."""
LEFT_NAME = "[0-9a-f]{16}[.]bin"


class Sandbox:
    """Processes with one purpose: those of one candidate, or one judge that serves several.

    ``pool`` forks them from warm processes; without one each is started afresh. ``outbox`` is the
    folder of a judge in another sandbox, whose inputs the workers of this one read. ``store``
    spares compiling again."""

    def __init__(
        self,
        request: EvaluationRequest,
        pool: ZygotePool | None = None,
        outbox: Path | None = None,
        store: CompiledKernels | None = None,
    ) -> None:
        self.request, self.pool, self.store = request, pool, store
        self.root = scratch.make("gate")
        self.outbox = outbox or self._folder("outbox")
        self.children: list[process.Child] = []
        self._early: asyncio.Task[Party] | None = None
        """The worker of a candidate that is still looked for."""
        self._watches: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every process of it and remove its folders."""
        if self._early is not None:
            self._early.cancel()
            await asyncio.gather(self._early, return_exceptions=True)
        for watch in self._watches:
            watch.cancel()
        try:
            await asyncio.gather(*(child.kill() for child in self.children))
        finally:
            leftovers.remove(self.root)

    async def judge(self) -> Party:
        """The process that knows what is right; a reference with Triton runs as the candidate does.

        Another one in its place once it has died.
        """
        leftovers.remove(self.root / "judge")
        confinement = self._confinement("judge", writable=(self.outbox,))
        triton = self.request.reference_has_triton
        party = await self._start(
            "kernel_lsp.evaluator.judging.judge",
            str(self.outbox),
            confinement,
            self._interpreted if triton else {},
            imports="triton" if triton else "",
        )
        if self.pool and self._gpu:
            self.pool.quiet.add(party.child)
        return party

    async def expect_worker(self) -> None:
        """Start what `worker` returns before there is a candidate, whose request is set then: a
        process and its context take a second on a GPU. What fails here is tried again."""
        self._early = asyncio.create_task(self._candidate_process("worker", self._candidates_key))
        await asyncio.wait([self._early])

    async def worker(self) -> Party:
        """A process that loads the candidate for its trials."""
        early, self._early = self._early, None
        if early is not None:
            with contextlib.suppress(EvaluationError):
                party = await early
                await party.ask("ready", READY_S)  # it may have died meanwhile
                self._lay_out(self._candidates_key, "worker")
                return party
            leftovers.remove(self.root / "worker")
        return await self._candidate_process("worker", self._candidates_key)

    async def timer(self) -> Party:
        """A process that loads the candidate beside its reference, to time them. Another one in
        its place once it has died."""
        leftovers.remove(self.root / "timer")
        return await self._candidate_process("timer", self._baselines_key)

    async def profiler(self) -> Party:
        """A process that tells where the time of the candidate's calls goes."""
        return await self._candidate_process("profiler", self._candidates_key)

    async def tuner(self) -> Party:
        """A process that compares many variants; nothing that it compiles is kept for the
        judgement."""
        return await self._candidate_process("tuner", CompiledKernels.key("tuner"))

    async def another_worker(self) -> Party:
        """One in the place of a worker that has ended."""
        leftovers.remove(self.root / "worker")
        return await self._candidate_process("worker", self._candidates_key)

    async def end_worker(self, worker: Party) -> None:
        """Ends the worker: its memory and cores belong to the timing now. Its kernels are kept."""
        await worker.child.kill()
        if self.store:
            self.store.take_in(self._candidates_key, self.root / "worker")

    def hand_kernels_on(self, timers: Sandbox) -> None:
        """What the worker has compiled of the candidate, to the timer in another sandbox: after
        keep_baselines, never before."""
        if self.store:
            self.store.lay_out(self._candidates_key, timers.root / "timer")

    @contextlib.asynccontextmanager
    async def making_baselines(self) -> AsyncIterator[None]:
        """Lets one candidate at a time start a timer and all that it compiles of the reference."""
        compile_s = self.request.budget.compile_s
        if self.store is None or compile_s <= 0:
            yield
        else:
            async with self.store.made_once(self._baselines_key, patience_s=compile_s):
                yield

    def keep_baselines(self) -> None:
        """What the timer has compiled of the reference; to be called before a candidate is loaded
        there."""
        if self.store and self.request.budget.compile_s > 0:
            self.store.take_in(self._baselines_key, self.root / "timer")

    @property
    def wants_driver(self) -> bool:
        """Whether there is something that the timer has to build for this machine, whatever it
        compiles."""
        request = self.request
        if self.store is None:
            return False
        return (
            request.uses_triton
            if self._gpu
            else request.device == "cpu" and request.budget.compile_s > 0
        )

    @property
    def needs_driver(self) -> bool:
        """Whether that is still to be built."""
        return (
            self.wants_driver and self.store is not None and not self.store.holds(self._driver_key)
        )

    def keep_driver(self) -> None:
        """What the timer has built for the machine; to be called before anything else is compiled
        there, and before it gets what was compiled earlier."""
        if self.store:
            self.store.take_in(self._driver_key, self.root / "timer")
            self.store.lay_out(self._baselines_key, self.root / "timer")

    def forget_driver(self) -> None:
        """What is kept was built for another compiler or torch: the next timer builds it, by
        itself."""
        if self.store:
            self.store.forget(self._driver_key)

    @property
    def wants_header(self) -> bool:
        """Whether the timer will compile kernels that begin with one header, as on a CPU, and has
        more to come: where it is the first it does as well without."""
        store = self.store
        return (
            store is not None
            and store.holds(self._header_key)
            and not store.holds(self._baselines_key)
        )

    async def keep_header(self, made: bool) -> None:
        """Keeps the precompiled C++ header that torch's compiler has made in the timer, for timers
        to come; ``made`` is False where it compiled without one, and then only that is noted. To
        be called before a candidate is loaded there. Does nothing on a GPU."""
        store, request = self.store, self.request
        if store is None or request.device != "cpu" or request.budget.compile_s <= 0:
            return
        if made:
            await asyncio.to_thread(store.take_in, self._header_key, self.root / "timer", HEADERS)
        else:
            store.begin(self._header_key)

    async def compiler(self) -> Party:
        """A process that compiles Triton kernels for GPUs that are not here."""
        confinement = process.Confinement(scratch=self._folder("compiler"))
        return await self._start(
            "kernel_lsp.evaluator.devices.aot", "", confinement, {"TRITON_INTERPRET": "0"}
        )

    async def builder(self, sources: str) -> Party:
        """A process that compiles a candidate's C++ and CUDA (native.py), and finds what was built
        of the same ``sources``."""
        confinement = process.Confinement(scratch=self._folder("builder"), gpu=self._gpu)
        if self.store:
            self.store.lay_out(self._native_key(sources), confinement.scratch)
        return await self._start("kernel_lsp.evaluator.running.builder", "", confinement, {})

    async def end_builder(self, builder: Party, sources: str) -> None:
        """What it has built is kept."""
        await builder.child.kill()
        if self.store:
            self.store.take_in(self._native_key(sources), self.root / "builder")

    def _native_key(self, sources: str) -> str:
        return CompiledKernels.key("native", sources, self.request.python, self.request.device)

    @property
    def _interpreted(self) -> dict[str, str]:
        return INTERPRETED if self.request.device == "interpreter" else {}

    @property
    def _candidates_key(self) -> str:
        request = self.request
        return CompiledKernels.key(
            "candidate", request.candidate_source, request.python, request.device
        )

    @property
    def _baselines_key(self) -> str:
        request = self.request
        asked = wire.dumps([request.reference, request.workload])
        return CompiledKernels.key("baselines", asked, request.python, request.device)

    @property
    def _driver_key(self) -> str:
        return CompiledKernels.key("driver", self.request.python, self.request.device)

    @property
    def _header_key(self) -> str:
        return CompiledKernels.key("header", self.request.python)

    async def _candidate_process(self, name: str, key: str) -> Party:
        """A process that has imported what it needs and has its context.

        It has seen nothing of the candidate yet: where it ends by itself, another one is started,
        once (seen one time in 14,000 tests: a module of numpy that was there was not found).
        Raises WorkerLost."""
        party = await self._start_candidates(name, key)
        try:
            await self._at_its_device(party)
        except WorkerLost:
            if party.child.ended_because:  # by us: it took too much memory or time
                raise
            leftovers.remove(self.root / name)
            party = await self._start_candidates(name, key)
            await self._at_its_device(party)
        return party

    async def _start_candidates(self, name: str, key: str) -> Party:
        confinement = self._confinement(
            name, readable=(self.outbox,), hidden=(self.root / "judge",)
        )
        extra = self._interpreted
        module, device = f"kernel_lsp.evaluator.running.{name}", self.request.device
        imports = "triton" if self.request.uses_triton else ""
        if name in ("timer", "profiler") and self.request.budget.compile_s > 0:
            imports = "compiler"  # which torch's profiler imports too
        self._lay_out(key, name)
        if self.store and name == "timer" and self.wants_header:
            await asyncio.to_thread(self.store.lay_out, self._header_key, self.root / name)
        party = await self._start(module, device, confinement, extra, imports=imports)
        self._watches.append(asyncio.create_task(self._watch(party.child, confinement.scratch)))
        return party

    def _lay_out(self, key: str, name: str) -> None:
        """What was compiled earlier, into the folder of a process."""
        if self.store:
            self.store.lay_out(self._driver_key, self.root / name)
            if name == "worker" or not self.needs_driver:
                # What is kept as the driver is nothing but it.
                self.store.lay_out(key, self.root / name)

    async def _at_its_device(self, party: Party) -> None:
        """Wait until it has imported what it needs and has its context; from then on it stands
        still while others are timed on a GPU.

        Before that it runs no kernel, and a context takes the driver 0.2 s. Raises WorkerLost.
        """
        await party.ask("ready", READY_S)
        if self.pool and self._gpu:
            self.pool.quiet.add(party.child)

    async def _watch(self, child: process.Child, scratch: Path) -> None:
        """End a candidate's process that takes more than rlimits can hold (hoarding.py)."""
        memory = self.request.budget.memory_bytes or _memory_of_this_machine()
        child.ended_because = await hoarding.until_too_much(
            child.process.pid, scratch, memory_bytes=memory, disk_bytes=DISK_BYTES
        )
        if child.ended_because:
            await child.kill()

    def _confinement(
        self,
        name: str,
        *,
        readable: tuple[Path, ...] = (),
        writable: tuple[Path, ...] = (),
        hidden: tuple[Path, ...] = (),
    ) -> process.Confinement:
        home = self.request.reference.home
        lived = store.folders_of(home) if home is not None else ()
        return process.Confinement(
            scratch=self._folder(name),
            gpu=self._gpu,
            readable=(*readable, *lived),
            writable=writable,
            hidden=hidden,
            overlaid=store.overlaid_by(home),
        )

    @property
    def _gpu(self) -> bool:
        return self.request.device == "cuda"

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir()
        return folder

    async def _start(
        self,
        module: str,
        argument: str,
        confinement: process.Confinement,
        extra: dict[str, str],
        *,
        imports: str = "",
    ) -> Party:
        start = self.pool.start if self.pool else ZygotePool.start_afresh
        device_sharing = self.pool.device_sharing if self.pool else None
        name = module.rpartition(".")[2]
        try:
            with phases.phase(f"{name}.start"):
                child = await start(
                    module,
                    argument,
                    python=self.request.python,
                    limits=self._limits(self._judge_bytes() if name == "judge" else DISK_BYTES),
                    confinement=confinement,
                    environment={**extra, **(device_sharing.environment if device_sharing else {})},
                    imports=imports,
                )
        except OSError as error:
            raise EvaluationError(
                f"could not judge: {self.request.python} does not start: {error.strerror}",
                "choose the project's interpreter",
            ) from error
        self.children.append(child)
        if device_sharing:
            device_sharing.settle(child.process.pid)
        return Party(child, name, confinement.scratch)

    def _judge_bytes(self) -> int:
        """Of one file of the judge's, which lays inputs there that may be larger than anything
        that a candidate may leave: half of what the disk has left."""
        return max(DISK_BYTES, shutil.disk_usage(self.root).free // 2)

    def _limits(self, file_bytes: int) -> process.Limits:
        memory = self.request.budget.memory_bytes
        if memory is None and not self._gpu:
            memory = _memory_of_this_machine()
        processes = None if self._gpu else running_tasks() + SPARE_PROCESSES
        return process.Limits(
            memory_bytes=None if self._gpu else memory, file_bytes=file_bytes, processes=processes
        )


class InFile(bytes):
    """Nothing, in the place of a blob that lies in a file of the parent's."""

    path: Path


class Party:
    """One child, asked by name of request."""

    def __init__(self, child: process.Child, name: str, scratch: Path | None = None) -> None:
        """``name``: what its phases are called by. ``scratch``: its folder, where it leaves large
        blobs of its answers and finds those of a request."""
        self.child, self.name, self.scratch = child, name, scratch
        self.notes: list[str] = []
        """What a timing process could not do, for the evidence."""

    async def ask(
        self, do: str, timeout_s: float, blobs: list[bytes] | None = None, **fields: Any
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Sends one request and returns (reply, blobs); large blobs travel as files of the child's
        folder. Raises TimeoutError and what the child's death means."""
        with phases.phase(f"{self.name}.{do}"):
            left = self._given(blobs or [])
            message = {"do": do, **fields, **({"left": left} if left else {})}
            reply, answer = await self.child.ask(message, blobs or [], timeout_s=timeout_s)
            return reply, self._fetched(reply, answer)

    def _given(self, blobs: list[bytes]) -> dict[str, str]:
        """Number of a blob -> name of its file in the child's folder."""
        left = {}
        for number, blob in enumerate(blobs):
            if isinstance(blob, InFile):
                assert self.scratch is not None
                left[str(number)] = blob.path.name
                blob.path = blob.path.rename(self.scratch / blob.path.name)
        return left

    def _fetched(self, reply: Any, answer: list[bytes]) -> list[bytes]:
        """What the child has left in its folder, taken where it cannot reach. Raises WorkerLost."""
        left = reply.pop("left", None) if isinstance(reply, dict) else None
        if not left:
            return answer
        try:
            for number, name in left.items():
                if re.fullmatch(LEFT_NAME, name) is None or self.scratch is None:
                    raise ValueError("that is no name of ours")
                answer[int(number)] = fetch_file(self.scratch, name)
        except (OSError, ValueError, TypeError, AttributeError, IndexError) as error:
            raise WorkerLost(f"{self.name} left no such files in its folder: {error}") from error
        return answer


def fetch_file(scratch: Path, name: str) -> InFile:
    """A file out of a child's folder. Raises OSError or ValueError when it is not one that it
    wrote.

    It is looked at only where the child has no name for it any more: a link in its place would
    lead to any file of the user's. What the child may still write through an open descriptor is
    its own answer."""
    folder = scratch.parent / FETCHED
    folder.mkdir(exist_ok=True)
    blob = InFile()
    blob.path = (scratch / name).rename(folder / f"{secrets.token_hex(8)}.bin")
    found = blob.path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        blob.path.unlink()
        raise ValueError("it is no file of its own")
    return blob


class InSession(Party):
    """A judge as one candidate's evaluation sees it: every request carries the session's number."""

    def __init__(self, judge: Party, session: int) -> None:
        super().__init__(judge.child, judge.name, judge.scratch)
        self.session = session

    async def ask(
        self, do: str, timeout_s: float, blobs: list[bytes] | None = None, **fields: Any
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Asks the judge as `Party.ask` does."""
        asking = asyncio.create_task(
            super().ask(do, timeout_s, blobs, session=self.session, **fields)
        )
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(asking)


async def ask_judge(
    judge: Party, do: str, timeout_s: float, blobs: list[bytes] | None = None, **fields: Any
) -> tuple[dict[str, Any], list[bytes]]:
    """The judge's answer, like Party.ask; raises EvaluationError when the judge refuses or dies."""
    try:
        reply, answer = await judge.ask(do, timeout_s, blobs, **fields)
    except WorkerLost as error:
        raise _reference_lost(judge, error) from error
    if "refused" in reply:
        kind = OutOfMemory if reply.get("memory") else EvaluationError
        raise kind(reply["refused"], reply["remedy"] or "run the file by itself and mend it")
    return reply, answer


class ReferenceCrashed(EvaluationError):
    """Running the reference has ended the judge by a signal, or lost it its device."""

    def __init__(self, cause: str, inputs: str) -> None:
        super().__init__(
            f"could not judge: running the reference failed: it crashed by {cause} (inputs: "
            f"{inputs})",
            f"{crashes.LIKELY}: mask its loads and stores, or make its inputs contiguous first",
        )
        self.crash, self.inputs = cause, inputs


def _reference_lost(judge: Party, error: WorkerLost) -> EvaluationError:
    log = judge.child.log
    inputs, cause = crashes.last_said(log), crashes.cause_of(error, log)
    if inputs and cause:
        return ReferenceCrashed(cause, inputs)
    said = None if error.remedy and crashes.MARK in error.remedy else error.remedy
    where = f" (inputs: {inputs})" if inputs else ""
    return EvaluationError(
        f"could not judge: running the reference failed: {error.cause}{where}",
        said or "run the file by itself and see what it does",
    )


def _memory_of_this_machine() -> int:
    """Bytes that one child may have when nobody says otherwise."""
    return int(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def running_tasks() -> int:
    """Threads of all processes that we can see: RLIMIT_NPROC counts threads of the user."""
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                total += sum(1 for _ in (entry / "task").iterdir())
            except OSError:  # it has just ended, or is another user's
                continue
    return total
