"""Zygotes, seen from the parent: start one per interpreter, have it fork children, notice its death.

A zygote that cannot be had here (no pidfd, a driver opened by an import, threads) is no failure: children
are then started afresh, as before (process.start), and the evidence says what confines them. No torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
from dataclasses import asdict
from typing import Any

from kernel_lsp import process
from kernel_lsp.confinement import BOOTSTRAP, clean_environment, environment_for
from kernel_lsp.errors import WorkerLost
from kernel_lsp.evaluator.manners import Manners
from kernel_lsp.process import Child, Confinement, Limits

CONTROL_BYTES = 64 * 1024
READY_S = 120.0
"""A first import of torch from a cold disk."""
END_S = 6.0
QUIET = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""How torch.compile starts in an empty cache: no pool of processes, no precompiled header (150 MB for
one use), vector instructions taken from the CPU's flags instead of test builds. The generated code is
the same; compiling a pointwise program takes 8 s of CPU time instead of 22. And what may not happen
before a fork: threads of numpy's library, a CUDA context by asking whether there is a device."""
SIGNALED = 128


class Unfit(Exception):
    """No zygote can be had of this interpreter."""


class Forked:
    """A process that a zygote has forked for us: killed through its pidfd, told dead by the zygote."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.pid = 0
        self.handle = -1
        self.layers: asyncio.Future[dict[str, Any] | None] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()

    @property
    def returncode(self) -> int | None:
        return self.ended.result() if self.ended.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    async def end(self) -> None:
        if self.handle >= 0 and not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), END_S)
        self.close()

    def close(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def gone(self, status: int) -> None:
        """It is dead; ``status`` is its exit code, or 128 and the signal."""
        if not self.ended.done():
            self.ended.set_result(status)
        if not self.layers.done():
            self.layers.set_exception(WorkerLost(f"a child died while it was confined (exit {status})"))


class Zygote:
    """One warm process of one interpreter. Use :func:`warm_up`; end with :meth:`close`."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.alive = True
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.forked: dict[int, Forked] = {}
        self.host: asyncio.subprocess.Process | None = None
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
        """A child that runs ``module``. Raises WorkerLost when the zygote or the child dies before that."""
        number, forked = next(self._numbers), Forked()
        order = {
            "id": number,
            "module": module,
            "argv": argv,
            "limits": {key: value for key, value in asdict(limits).items() if value is not None},
            "confinement": _as_json(confinement),
            "environment": environment_for(confinement, environment),
            "nice": nice,
        }
        self.forked[number] = forked
        ours, theirs = socket.socketpair()
        log, errors = os.pipe()
        try:
            socket.send_fds(self.control, [json.dumps(order).encode()], [theirs.fileno()] * 2 + [errors])
        except OSError as error:
            self._hang_up()
            raise WorkerLost(f"the zygote is gone: {error}") from error
        finally:
            theirs.close()
            os.close(errors)
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=2**20)
        child = Child(
            module.removeprefix("kernel_lsp."), forked, reader=reader, writer=writer, log=await _lines(log)
        )
        try:
            layers = await asyncio.wait_for(asyncio.shield(forked.layers), READY_S)
        except BaseException:  # also a cancellation: nobody else knows this child
            await child.kill()
            raise
        child.confined = describe(layers or {})
        return child

    async def close(self) -> None:
        """End it; its children end with it."""
        self._hang_up()
        if self.host is not None and self.host.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.host.kill()
        if self.host is not None:
            await self.host.wait()

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
            self.ready.set_result(message)
        elif "started" in message:
            forked = self.forked[message["started"]]
            forked.pid, forked.handle = message["pid"], descriptors[0]
        elif "confined" in message:
            forked = self.forked[message["confined"]]
            if not forked.layers.done():
                forked.layers.set_result(message["layers"])
        elif "ended" in message:
            self.forked.pop(message["ended"]).gone(message["status"])

    def _hang_up(self) -> None:
        if not self.alive:
            return
        self.alive = False
        asyncio.get_running_loop().remove_reader(self.control)
        self.control.close()
        if not self.ready.done():
            self.ready.set_exception(Unfit("it ended while it was starting"))
        for forked in self.forked.values():
            forked.gone(SIGNALED + signal.SIGKILL)
        self.forked.clear()


async def warm_up(python: str, *variant: str, environment: dict[str, str]) -> Zygote:
    """Start a zygote of ``python``. Raises Unfit, with the reason, or OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    zygote = Zygote(ours)
    argv = [python, "-B", str(BOOTSTRAP), "{}", "read-to-the-end", "kernel_lsp.evaluator.zygote", *variant]
    try:
        zygote.host = await asyncio.create_subprocess_exec(
            *argv,
            stdin=theirs.fileno(),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=None if os.environ.get("KERNEL_LSP_DEBUG") else asyncio.subprocess.DEVNULL,
            env={**clean_environment(), **QUIET, **environment},
            start_new_session=True,
        )
        theirs.close()
        state = await asyncio.wait_for(zygote.ready, READY_S)
        if state["cuda"] or state["threads"] > 1:
            raise Unfit(f"importing torch left {state['threads']} threads, CUDA open: {state['cuda']}")
    except BaseException:
        theirs.close()
        await zygote.close()
        raise
    return zygote


class Pool:
    """The zygotes of one gate, by interpreter and variant; replaced when they die."""

    def __init__(self, manners: Manners | None = None) -> None:
        self.manners = manners
        self._warm: dict[tuple[str, ...], asyncio.Task[Zygote]] = {}
        self._unfit: set[str] = set()

    async def start(
        self,
        module: str,
        *argv: str,
        python: str,
        limits: Limits,
        confinement: Confinement,
        environment: dict[str, str],
        compiles: bool = False,
    ) -> Child:
        """A confined child, forked where that is possible and else started. Raises OSError, WorkerLost."""
        kind = {key: environment[key] for key in ("TRITON_INTERPRET",) if environment.get(key) == "1"}
        variant = ("compiler",) if compiles else ()
        for _ in range(2):  # a zygote that something has killed is replaced once
            zygote = await self._zygote(python, variant, kind)
            if zygote is None:
                break
            with contextlib.suppress(WorkerLost):
                return await zygote.fork(
                    module, *argv, limits=limits, confinement=confinement, environment=environment
                )
        return await self.start_afresh(
            module, *argv, python=python, limits=limits, confinement=confinement, environment=environment
        )

    @staticmethod
    async def start_afresh(
        module: str,
        *argv: str,
        python: str,
        limits: Limits,
        confinement: Confinement,
        environment: dict[str, str],
        compiles: bool = False,
    ) -> Child:
        """Like :meth:`start` without a zygote: importing torch takes the child 2 to 9 s."""
        return await process.start(
            module,
            *argv,
            python=python,
            limits=limits,
            confinement=confinement,
            environment={**QUIET, **environment},
        )

    async def _zygote(self, python: str, variant: tuple[str, ...], kind: dict[str, str]) -> Zygote | None:
        if python in self._unfit or not hasattr(signal, "pidfd_send_signal") or sys.platform != "linux":
            return None
        key = (python, *variant, *kind)
        task = self._warm.get(key)
        if task is None or (
            task.done() and (task.cancelled() or task.exception() or not task.result().alive)
        ):
            task = self._warm[key] = asyncio.create_task(warm_up(python, *variant, environment=kind))
        try:
            return await asyncio.shield(task)
        except (Unfit, TimeoutError):
            self._unfit.add(python)
            return None

    async def close(self) -> None:
        tasks = list(self._warm.values())
        self._warm.clear()
        for task in tasks:
            if not task.done():
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Unfit, OSError, TimeoutError):
                await (await task).close()


def describe(layers: dict[str, Any]) -> str:
    """The layers that took effect, for the evidence."""
    names = list(layers.get("namespaces", ()))
    parts = [f"namespaces ({', '.join(names)})" if names else "no namespaces"]
    parts.append(f"Landlock {layers['landlock']}" if layers.get("landlock") else "no Landlock")
    parts.append("seccomp" if layers.get("seccomp") else "no seccomp")
    parts.append("privileges kept" if layers.get("privileges", True) else "no privileges")
    return ", ".join(parts)


def _as_json(confinement: Confinement) -> dict[str, Any]:
    fields = asdict(confinement)
    return {
        key: [str(path) for path in value]
        if isinstance(value, tuple)
        else value
        if key == "gpu"
        else str(value)
        for key, value in fields.items()
    }


async def _lines(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=2**20)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader
