"""One zygote, seen from the parent: start it, have it fork children, notice its death. No torch.

The other end is zygote.py. Orders and descriptors travel over a socket that keeps messages apart;
a child is killed through its pidfd, and the zygote reports it dead when all that it started is dead
too."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernel_lsp import scratch
from kernel_lsp.confinement import BOOTSTRAP, clean_environment, entry, environment_for, visible
from kernel_lsp.confinement.layers import INHERITED, PROCESSES, describe, names
from kernel_lsp.errors import WorkerLost
from kernel_lsp.process import MARK, Child, Confinement, Limits, Process, Started

CONTROL_BYTES = 64 * 1024
READY_S = 120.0
"""A first import of torch from a cold disk."""
END_S = 15.0
"""How long a death is waited for: clearing away a fork bomb takes seconds."""
SIGNALED = 128
MODULE = "kernel_lsp.evaluator.processes.zygote"
QUIET = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""How torch.compile starts in an empty cache: no pool of processes, no precompiled header (150 MB
for one use; baselines have one, running/compiling.py), vector instructions taken from the CPU's
flags instead of test builds. The generated code is the same; compiling a pointwise program takes
8 s of CPU time instead of 22. And what may not happen before a fork: threads of numpy's library, a
CUDA context by asking whether there is a device."""


class UnfitInterpreter(Exception):
    """No zygote can be had of this interpreter."""


class Forked:
    """A process that a zygote has forked for us: killed through its pidfd, reported dead by the
    zygote."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.pid = 0
        self._handle: asyncio.Future[int] = loop.create_future()
        self._closed = False
        self.layers: asyncio.Future[dict[str, Any] | None] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for a signal; None: it runs."""
        return self.ended.result() if self.ended.done() else None

    async def wait(self) -> int:
        """Its exit status, once it has ended; cancelling the wait ends nothing."""
        return await asyncio.shield(self.ended)

    async def end(self) -> None:
        """Kill the child and wait for its end, at most END_S for each of both."""
        await asyncio.wait([self._handle, self.ended], return_when="FIRST_COMPLETED", timeout=END_S)
        if self._handle.done() and not self._closed:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle.result(), signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), END_S)
            self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._handle.result())

    def started(self, pid: int, handle: int) -> None:
        """Takes the process that the zygote has forked: its number and a handle on it. ``pid``: as
        the zygote sees it; where that has a process tree of its own, ours is another."""
        self.pid = _seen_here(handle) or pid
        self._handle.set_result(handle)

    def is_confined(self, layers: dict[str, Any] | None, missing: list[str] | None = None) -> None:
        """Takes the zygote's word on which layers hold; ``missing`` ones make whoever waits for
        `layers` fail. The first word counts."""
        if self.layers.done():
            return
        if missing:
            self.layers.set_exception(entry.refusal(missing, layers or {}, None))
            self.layers.exception()  # seen: whoever waits for it was perhaps cancelled
        else:
            self.layers.set_result(layers)

    def gone(self, status: int) -> None:
        """Notes that it is dead; ``status`` is its exit code, or 128 and the signal."""
        if not self.ended.done():
            self.ended.set_result(status)
        if not self.layers.done():
            self.layers.set_exception(
                WorkerLost(f"a child died while it was confined (exit {status})")
            )
            self.layers.exception()  # seen: a branch has nobody who waits for this


class ZygoteClient:
    """One warm process. Use :func:`warm_up` and :meth:`branch`; end with :meth:`close`."""

    def __init__(
        self,
        control: socket.socket,
        environment: dict[str, str],
        layers: frozenset[str] = frozenset(),
    ) -> None:
        """``layers``: of its own confinement."""
        control.setblocking(False)
        self.control, self.environment, self.layers = control, environment, layers
        self.alive = True
        self.process: Process | None = None
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._forked: dict[int, Forked] = {}
        self._numbers = itertools.count(1)
        asyncio.get_running_loop().add_reader(control, self._hear)

    async def fork(
        self,
        module: str,
        *argv: str,
        limits: Limits,
        confinement: Confinement,
        environment: dict[str, str],
        nice: int = 0,
    ) -> Child:
        """A child that runs ``module``. Raises WorkerLost when the zygote or the child dies before
        that, Unconfined when less holds than is required."""
        order = {
            "module": module,
            "argv": argv,
            "limits": {key: value for key, value in asdict(limits).items() if value is not None},
            "confinement": {
                **entry.order(confinement),
                "inherited": sorted(self.layers & INHERITED),
            },
            "environment": environment_for(confinement, {**QUIET, **environment}),
            "nice": nice,
        }
        name, (reader, writer, lines, theirs) = module.removeprefix("kernel_lsp."), await _streams()
        try:
            forked = self._send(order, [theirs[0], theirs[0], theirs[1]])
        except WorkerLost:
            writer.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        child = Child(name, forked, reader=reader, writer=writer, log=lines)
        try:
            layers = await asyncio.wait_for(asyncio.shield(forked.layers), READY_S)
        except BaseException:  # also a cancellation: nobody else knows this child
            await child.kill()
            raise
        child.confined, child.layers = describe(layers or {}), names(layers or {})
        entry.keep(forked.pid, "forked", module, layers or {})
        return child

    async def branch(self, variant: str) -> ZygoteClient:
        """A zygote that has imported more, forked from this one. Raises Unfit, WorkerLost."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = {
            "module": MODULE,
            "argv": [variant],
            "limits": {},
            "confinement": None,
            "environment": self.environment,
            "nice": 0,
        }
        branch = ZygoteClient(ours, self.environment, self.layers)
        null = os.open(os.devnull, os.O_RDWR)
        try:
            branch.process = self._send(order, [theirs.fileno(), null, null])
        finally:
            theirs.close()
            os.close(null)
        return await branch.settled()

    async def settled(self) -> ZygoteClient:
        """This zygote when it is ready. Raises Unfit; it is closed then."""
        try:
            state = await asyncio.wait_for(self._ready, READY_S)
            if state["cuda"] or state["threads"] > 1:
                raise UnfitInterpreter(
                    f"importing torch left {state['threads']} threads, CUDA open: {state['cuda']}"
                )
        except BaseException:  # also a cancellation: nobody else knows this process
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """End it; its children end with it."""
        self._hang_up()
        if self.process is not None:
            await self.process.end()

    def _send(self, order: dict[str, Any], descriptors: Sequence[int]) -> Forked:
        number, forked = next(self._numbers), Forked()
        self._forked[number] = forked
        try:
            socket.send_fds(
                self.control, [json.dumps({**order, "id": number}).encode()], descriptors
            )
        except OSError as error:
            self._hang_up()
            raise WorkerLost(f"the zygote is gone: {error}") from error
        return forked

    def _hear(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, CONTROL_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._hang_up()
            return
        message = json.loads(data)
        if "ready" in message:
            self._ready.set_result(message)
        elif "started" in message:
            self._forked[message["started"]].started(message["pid"], descriptors[0])
        elif "confined" in message:
            self._forked[message["confined"]].is_confined(message["layers"], message.get("missing"))
        elif "ended" in message:
            self._forked.pop(message["ended"]).gone(message["status"])

    def _hang_up(self) -> None:
        if not self.alive:
            return
        self.alive = False
        asyncio.get_running_loop().remove_reader(self.control)
        self.control.close()
        if not self._ready.done():
            self._ready.set_exception(UnfitInterpreter("it ended while it was starting"))
        for forked in self._forked.values():
            forked.gone(SIGNALED + signal.SIGKILL)
        self._forked.clear()


async def warm_up(
    python: str,
    environment: dict[str, str],
    readable: Iterable[Path] = (),
    writable: Iterable[Path] = (),
) -> ZygoteClient:
    """Start a zygote of ``python``. Raises Unfit, with the reason, Unconfined, or OSError.

    ``readable``, ``writable``: folders that its children are given besides the room of scratch
    folders."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**clean_environment(), **QUIET, **environment}
    try:
        with theirs:
            begun = await entry.start(
                (python, "-B", str(BOOTSTRAP), "{}", "read-to-the-end", MODULE),
                confinement=Confinement(
                    scratch=scratch.room(),
                    readable=tuple(readable),
                    writable=tuple(writable),
                    gpu=bool(visible.gpu_devices()),
                    nesting=True,
                ),
                environment={
                    **environment,
                    MARK: "zygote",
                },  # its forks show it: other editors know them
                limits=Limits(file_bytes=None),
                stdin=theirs.fileno(),
                stdout=entry.DEVNULL,
                stderr=None if os.environ.get("KERNEL_LSP_DEBUG") else entry.DEVNULL,
            )
    except BaseException:
        ours.close()
        raise
    layers = names(begun.layers)
    zygote = ZygoteClient(ours, environment, layers)
    zygote.process = Started(begun.process, "", own_tree=PROCESSES in layers)
    return await zygote.settled()


def _seen_here(handle: int) -> int | None:
    """The number, in this process's own tree, of the process behind a pidfd."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines():
            if line.startswith("Pid:"):
                return max(int(line.split()[1]), 0) or None
    return None


async def _streams() -> tuple[
    asyncio.StreamReader, asyncio.StreamWriter, asyncio.StreamReader, tuple[int, int]
]:
    """Our ends of a child's channel and of its log, and the two descriptors that are the
    child's."""
    ours, theirs = socket.socketpair()
    log, errors = os.pipe()
    with contextlib.ExitStack() as undo:  # a cancellation must leave nothing open
        undo.callback(os.close, errors)
        undo.callback(theirs.close)
        undo.callback(ours.close)
        lines = asyncio.StreamReader(limit=2**20)
        reading, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(log, "rb", 0)
        )
        undo.callback(reading.close)
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=2**20)
        undo.pop_all()
    return reader, writer, lines, (theirs.detach(), errors)
