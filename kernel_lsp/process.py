"""Child processes that may crash, hang or lie: start, talk to, and surely end them.

Engine, judge, worker and host are all `Child`ren: one of our modules run by path in some
interpreter (see bootstrap.py), or forked by a zygote (see evaluator/processes/zygote.py), speaking
sealed frames (see wire.py). What they may touch is confinement.py's.

Covered: time (the asker's), everything a child has started, its words before it died. Ends with
its parent, also after kill -9. Not covered: GPU memory; an attack on the kernel itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from kernel_lsp import wire
from kernel_lsp.confinement import BOOTSTRAP, Confinement, Limits, entry, environment_for
from kernel_lsp.confinement.layers import PROCESSES, describe, names
from kernel_lsp.errors import WorkerLost

__all__ = ["Child", "Confinement", "Limits", "Process", "StartChild", "start"]

LOG_TAIL_BYTES = 64 * 1024
MARK = "KERNEL_LSP_CHILD"
LAST_WORDS_S = 0.5
"""How long what a dead child has printed is waited for."""
SHORT_S = 0.01
STRAYS_S = 5.0
"""How long strays are hunted: a fork bomb may be faster than we are."""


class Process(Protocol):
    """What a Child needs of the process behind it."""

    @property
    def pid(self) -> int:
        """The process id."""

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None: it runs."""

    async def end(self) -> None:
        """Kill it and everything it started; returns when they are dead. Safe to call twice."""

    async def wait(self) -> int:
        """The exit status, once it has ended."""


class Started:
    """A process that we have started ourselves, in a session of its own."""

    def __init__(
        self, process: asyncio.subprocess.Process, mark: str, *, own_tree: bool = False
    ) -> None:
        """``own_tree``: all that it starts ends with it."""
        self._process, self._mark, self._own_tree = process, mark, own_tree
        self.pid = process.pid
        self.wait = process.wait

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None: it runs."""
        return self._process.returncode

    async def end(self) -> None:
        """Kill the child and all that it has started, and wait for the end, 5 s at most."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # own session: also ends compilers it started
        if not self._own_tree:
            await end_marked(self._mark)
        with contextlib.suppress(TimeoutError):
            # wait() also waits for pipes that a stray may still hold.
            await asyncio.wait_for(self.wait(), 5)


ADVICE = (
    "CUDA kernel errors might be asynchronously reported",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING",
    "Compile with `TORCH_USE_CUDA_DSA`",
    "Device-side assertions were explicitly omitted",
    "Search for `cuda",
)
"""How lines begin that torch prints below each error of CUDA; the error stands above them."""


class Child:
    """One running child. Use :func:`start`; always end with :meth:`kill`."""

    def __init__(
        self,
        name: str,
        process: Process,
        *,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        log: asyncio.StreamReader,
        confined: str = "",
    ) -> None:
        self.name, self.process, self.confined = name, process, confined
        self.layers: frozenset[str] = frozenset()
        """Layers of confinement that took effect, by name (confinement/layers.py)."""
        self.ended_because = ""
        """Why somebody else than the asker ends it; set before it is killed."""
        self._reader, self._writer, self._log_stream = reader, writer, log
        key = secrets.token_bytes(wire.KEY_BYTES)
        self._requests, self._replies = wire.Seal(key, wire.REQUESTS), wire.Seal(key, wire.REPLIES)
        writer.write(key)
        self._log = bytearray()
        self._logging = asyncio.create_task(self._collect_log(log))
        self._turn = asyncio.Lock()
        self._paused_since: float | None = None
        self._paused_s = 0.0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.returncode is None

    @property
    def closed(self) -> bool:
        """Whether our ends of its channels are closed: :meth:`kill` has run."""
        return self._writer.is_closing()

    @property
    def log(self) -> str:
        """The last 64 KiB of what it printed."""
        return self._log.decode(errors="replace")

    async def ask(
        self, message: dict[str, Any], blobs: Sequence[bytes | memoryview] = (), *, timeout_s: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send one frame and return the reply.

        Raises WorkerLost when the child dies or stays silent; it is dead afterwards. A cancelled
        ask kills it too, since its next reply would belong to nobody. Time in which the child was
        paused does not count.
        """
        async with self._turn:
            try:
                return await self._exchange_within(timeout_s, message, blobs)
            except TimeoutError:
                self.ended_because = f"it gave no answer within {timeout_s:.0f} s"
                await self.kill()
                raise WorkerLost(
                    f"{self.name} gave no answer within {timeout_s:.0f} s and was ended"
                ) from None
            except wire.Forged as error:
                await self.kill()
                raise WorkerLost(
                    f"{self.name} spoke out of turn: {error}", self._last_words()
                ) from error
            except (asyncio.IncompleteReadError, ConnectionError, ValueError, KeyError) as error:
                await self.kill()
                raise WorkerLost(
                    f"{self.name} {self._how_it_ended()}", self._last_words()
                ) from error
            except asyncio.CancelledError:
                self.ended_because = self.ended_because or "nobody waits for its answer any more"
                await self.kill()
                raise

    async def send(self, message: dict[str, Any], blobs: Sequence[bytes | memoryview] = ()) -> None:
        """Write one frame without waiting for a reply (see :meth:`receive`).

        Raises ConnectionError when the child has ended: asyncio of Python 3.12 raises TypeError."""
        if self._writer.is_closing():
            raise ConnectionResetError(f"{self.name} no longer reads")
        self._writer.writelines(wire.encode_frame(self._requests, message, blobs))
        await self._writer.drain()

    async def receive(self) -> tuple[dict[str, Any], list[bytes]]:
        """The next frame. Raises asyncio.IncompleteReadError at end of file, wire.Forged (a
        ValueError) when something else than the child's own protocol has written into its pipe."""
        stream = self._reader
        size = int.from_bytes(await stream.readexactly(4), "big")
        if size > wire.MAX_HEADER_BYTES:
            raise wire.Forged(f"a header of {size} bytes is no frame of ours")
        raw = await stream.readexactly(size)
        opening, closing = self._replies(raw)
        wire.check(await stream.readexactly(wire.SEAL_BYTES), opening)
        header = json.loads(raw)
        blobs = [await stream.readexactly(n) for n in header["blobs"]]
        wire.check(await stream.readexactly(wire.SEAL_BYTES), closing)
        return header["message"], blobs

    def pause(self) -> None:
        """Stop the child and its process group where they are, until :meth:`resume`."""
        if self._paused_since is None:
            self._paused_since = time.monotonic()
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused child go on; the pause does not count into its time."""
        if self._paused_since is not None:
            self._paused_s, self._paused_since = self.paused_s, None
            self._signal(signal.SIGCONT)

    @property
    def paused_s(self) -> float:
        """Seconds that it was stopped, in all."""
        since = self._paused_since
        return self._paused_s + (time.monotonic() - since if since is not None else 0.0)

    def _signal(self, number: signal.Signals) -> None:
        if self.alive and self.process.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    async def kill(self) -> None:
        """End the child and everything it started. Safe to call twice."""
        await self.process.end()
        await asyncio.wait([self._logging], timeout=LAST_WORDS_S)
        self._logging.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._logging
        await self._release()

    async def _release(self) -> None:
        """Close our ends, also those whose other end a stray holds, before the loop may be
        closed."""
        self._writer.close()
        for stream in (self._reader, self._log_stream):
            # A StreamReader cannot be closed otherwise.
            transport = getattr(stream, "_transport", None)
            if transport is not None:
                transport.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), LAST_WORDS_S)
        await asyncio.sleep(0)  # transports say goodbye in the loop's next turn

    async def _exchange_within(
        self, seconds: float, message: dict[str, Any], blobs: Sequence[bytes | memoryview]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Raises TimeoutError after ``seconds`` in which the child was not paused."""
        exchange = asyncio.create_task(self._exchange(message, blobs))
        begin = time.monotonic() - self.paused_s
        try:
            while (left := begin + seconds - (time.monotonic() - self.paused_s)) > 0:
                if (await asyncio.wait([exchange], timeout=max(left, SHORT_S)))[0]:
                    return exchange.result()
            raise TimeoutError
        finally:
            exchange.cancel()
            await asyncio.gather(exchange, return_exceptions=True)

    async def _exchange(
        self, message: dict[str, Any], blobs: Sequence[bytes | memoryview]
    ) -> tuple[dict[str, Any], list[bytes]]:
        await self.send(message, blobs)
        return await self.receive()

    async def _collect_log(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(8192):
            self._log += chunk
            del self._log[:-LOG_TAIL_BYTES]

    def _how_it_ended(self) -> str:
        if self.ended_because:
            return f"was ended because {self.ended_because}"
        code = self.process.returncode
        if code is None:
            return "stopped talking"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        # a guardian reports its child's signal the way a shell does
        return (
            f"was ended by {signal.Signals(code - 128).name}"
            if 128 < code < 160
            else f"exited with {code}"
        )

    def _last_words(self) -> str | None:
        lines = [line for line in self.log.splitlines() if line.strip()]
        named = [line for line in lines if not line.startswith(ADVICE)]
        return f"it said: {(named or lines)[-1][:300]}" if lines else None


StartChild = Callable[..., Awaitable[Child]]
"""How a child is started: `start`, or a fork of something warm."""


async def start(
    module: str,
    *arguments: str,
    python: str,
    limits: Limits,
    confinement: Confinement | None = None,
    environment: dict[str, str] | None = None,
) -> Child:
    """Start one of our modules in the interpreter ``python``; None confines nothing and is for our
    own code alone. Raises OSError, and Unconfined when less holds here than is required."""
    rlimits = json.dumps({key: value for key, value in asdict(limits).items() if value is not None})
    # Only what is confined is disposable: the host still has events to write when its pipe closes.
    ending = "leave-with-pipe" if confinement else "read-to-the-end"
    argv = [python, "-B", str(BOOTSTRAP), rlimits, ending, module, *arguments]
    mark = f"{MARK}={secrets.token_hex(8)}"
    extra = {**(environment or {}), MARK: mark.partition("=")[2]}
    seen = environment_for(confinement, extra)
    if confinement is None:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=seen,
            start_new_session=True,
            limit=2**20,
        )
        layers: Mapping[str, Any] = {}
    else:
        begun = await entry.start(
            argv, confinement=confinement, environment=seen, limits=limits, stdin=subprocess.PIPE
        )
        process, layers = begun.process, begun.layers
    assert process.stdin and process.stdout and process.stderr
    child = Child(
        module.removeprefix("kernel_lsp."),
        Started(process, mark, own_tree=PROCESSES in names(layers)),
        reader=process.stdout,
        writer=process.stdin,
        log=process.stderr,
        confined=describe(layers) if layers else "",
    )
    child.layers = names(layers)
    return child


async def end_marked(mark: str) -> None:
    """Kill every process whose environment carries ``mark`` until none is left: strays that left
    the process group. A dying process has no environment any more, and one that forks meanwhile is
    met again."""
    end = time.monotonic() + STRAYS_S
    while mark and (strays := _find_marked(mark.encode())) and time.monotonic() < end:
        for stray in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(stray, signal.SIGKILL)
        await asyncio.sleep(0.005)


def _find_marked(mark: bytes) -> list[int]:
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (place / "environ").read_bytes():
                    found.append(int(place.name))
    return found
