"""Child processes that may crash, hang or lie: start, confine, talk to, and surely end them.

Engine, judge, worker and host are all `Child`ren: one of our modules run by path in some
interpreter (see bootstrap.py), speaking frames (see wire.py) over its stdin and stdout.

Covered: time (the asker's), memory, processes, file size; with bubblewrap also network, a
read-only file system with one scratch folder, a private /tmp and /proc. Ends with its parent,
also after kill -9. Not covered: without bubblewrap, network and files are as open as to the
user (`Confinement.note` says so); GPU memory; an attack on the kernel itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernel_lsp import wire
from kernel_lsp.errors import WorkerLost

BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
LOG_TAIL_BYTES = 64 * 1024
MARK = "KERNEL_LSP_CHILD"
MAX_HEADER_BYTES = 64 * 1024 * 1024
STRAYS_S = 5.0
"""How long strays are hunted: a fork bomb may be faster than we are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """rlimits of a child; None leaves the user's own."""

    memory_bytes: int | None = None
    """Address space. Leave None with CUDA, which reserves far more than it uses."""
    cpu_seconds: int | None = None
    file_bytes: int | None = 2 * 1024**3
    processes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Confinement:
    """What a child may touch."""

    scratch: Path
    """The only folder it can write to; also its working directory and TMPDIR."""
    hidden: tuple[Path, ...] = ()
    """Folders it may not even read (the judge's scratch folder, the user's keys)."""
    readable: tuple[Path, ...] = ()
    """Folders that stay visible although they lie under /tmp."""
    writable: tuple[Path, ...] = ()
    """Further folders it can write to (the judge's outbox)."""
    gpu: bool = False

    @property
    def note(self) -> str:
        return (
            "bubblewrap" if bubblewrap() else "no bubblewrap: limits only, network and files are not confined"
        )

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """``argv`` behind bubblewrap when this machine can use it, else unchanged."""
        program = bubblewrap()
        if program is None:
            return list(argv)
        device = ["--dev-bind", "/dev", "/dev"] if self.gpu else ["--dev", "/dev"]
        hidden = [part for folder in self.hidden if folder.exists() for part in ("--tmpfs", str(folder))]
        interpreter = Path(argv[0]).parent.parent
        shown = (BOOTSTRAP.parent, interpreter, *self.readable)
        visible = [part for folder in shown for part in ("--ro-bind", str(folder), str(folder))]
        scratch = str(self.scratch)
        shared = [part for folder in self.writable for part in ("--bind", str(folder), str(folder))]
        return [
            program, "--die-with-parent", "--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
            "--ro-bind", "/", "/", *device, "--proc", "/proc", "--tmpfs", "/dev/shm",
            "--tmpfs", "/tmp", *hidden, *visible, *shared,
            "--bind", scratch, scratch, "--chdir", scratch, "--", *argv,
        ]  # fmt: skip


@functools.cache
def bubblewrap() -> str | None:
    """Path of a bubblewrap that really works here (containers often forbid namespaces)."""
    program = shutil.which("bwrap")
    if program is None or os.environ.get("KERNEL_LSP_NO_BWRAP"):
        return None
    probe = [
        program,
        "--unshare-net",
        "--unshare-pid",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--",
        "true",
    ]
    try:
        done = subprocess.run(probe, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return program if done.returncode == 0 else None


class Child:
    """One running child. Use :func:`start`; always end with :meth:`kill`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, mark: str = "") -> None:
        self.name = name
        self.mark = mark
        self.process = process
        self._log = bytearray()
        self._logging = asyncio.create_task(self._collect_log())
        self._turn = asyncio.Lock()

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    @property
    def log(self) -> str:
        """The last 64 KiB of what it printed."""
        return self._log.decode(errors="replace")

    async def ask(
        self, message: dict[str, Any], blobs: Sequence[bytes | memoryview] = (), *, timeout_s: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send one frame and return the reply.

        Raises WorkerLost when the child dies or stays silent; it is dead afterwards. A cancelled
        ask kills it too, since its next reply would belong to nobody.
        """
        async with self._turn:
            try:
                return await asyncio.wait_for(self._exchange(message, blobs), timeout_s)
            except TimeoutError:
                await self.kill()
                raise WorkerLost(
                    f"{self.name} gave no answer within {timeout_s:.0f} s and was ended"
                ) from None
            except (asyncio.IncompleteReadError, ConnectionError, ValueError, KeyError) as error:
                await self.kill()
                raise WorkerLost(f"{self.name} {self._how_it_ended()}", self._last_words()) from error
            except asyncio.CancelledError:
                await self.kill()
                raise

    async def send(self, message: dict[str, Any], blobs: Sequence[bytes | memoryview] = ()) -> None:
        """Write one frame without waiting for a reply (see :meth:`receive`)."""
        assert self.process.stdin is not None
        self.process.stdin.writelines(wire.encode_frame(message, blobs))
        await self.process.stdin.drain()

    async def receive(self) -> tuple[dict[str, Any], list[bytes]]:
        """The next frame. Raises asyncio.IncompleteReadError at end of file."""
        stream = self.process.stdout
        assert stream is not None
        size = int.from_bytes(await stream.readexactly(4), "big")
        if size > MAX_HEADER_BYTES:
            raise ValueError(f"a header of {size} bytes is no frame of ours")
        header = json.loads(await stream.readexactly(size))
        return header["message"], [await stream.readexactly(n) for n in header["blobs"]]

    async def kill(self) -> None:
        """End the child and everything it started. Safe to call twice."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)  # own session: also reaps compilers it started
        if not bubblewrap():  # with it, the PID namespace has ended with its first process
            await end_marked(self.mark)
        with contextlib.suppress(TimeoutError):  # wait() also waits for pipes that a stray may still hold
            await asyncio.wait_for(self.process.wait(), 5)
        self._logging.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._logging

    async def _exchange(
        self, message: dict[str, Any], blobs: Sequence[bytes | memoryview]
    ) -> tuple[dict[str, Any], list[bytes]]:
        await self.send(message, blobs)
        return await self.receive()

    async def _collect_log(self) -> None:
        assert self.process.stderr is not None
        while chunk := await self.process.stderr.read(8192):
            self._log += chunk
            del self._log[:-LOG_TAIL_BYTES]

    def _how_it_ended(self) -> str:
        code = self.process.returncode
        if code is None:
            return "stopped talking"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        # bubblewrap reports its child's signal the way a shell does
        return (
            f"was ended by {signal.Signals(code - 128).name}" if 128 < code < 160 else f"exited with {code}"
        )

    def _last_words(self) -> str | None:
        lines = [line for line in self.log.splitlines() if line.strip()]
        return f"it said: {lines[-1][:300]}" if lines else None


async def start(
    module: str,
    *arguments: str,
    python: str,
    limits: Limits,
    confinement: Confinement | None = None,
    environment: dict[str, str] | None = None,
) -> Child:
    """Start one of our modules in the interpreter ``python``; None confines nothing."""
    rlimits = json.dumps({key: value for key, value in asdict(limits).items() if value is not None})
    # Only what is confined is disposable: the host still has events to write when its pipe closes.
    ending = "leave-with-pipe" if confinement else "read-to-the-end"
    argv = [python, "-B", str(BOOTSTRAP), rlimits, ending, module, *arguments]
    mark = f"{MARK}={secrets.token_hex(8)}"
    extra = {**(environment or {}), MARK: mark.partition("=")[2]}
    process = await asyncio.create_subprocess_exec(
        *(confinement.wrap(argv) if confinement else argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=confinement.scratch if confinement else None,
        env=_environment(confinement, extra),
        start_new_session=True,
        limit=2**20,
    )
    return Child(module.removeprefix("kernel_lsp."), process, mark)


async def end_marked(mark: str) -> None:
    """Kill every process whose environment carries ``mark`` until none is left: strays that left the
    process group. A dying process has no environment any more, and one that forks meanwhile is met again."""
    end = time.monotonic() + STRAYS_S
    while mark and (strays := _marked(mark.encode())) and time.monotonic() < end:
        for stray in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(stray, signal.SIGKILL)
        await asyncio.sleep(0.005)


def _marked(mark: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def _environment(confinement: Confinement | None, extra: dict[str, str]) -> dict[str, str]:
    """The user's environment without secrets: what a confined child has no use for, it does not see."""
    if confinement is None:
        return {**os.environ, **extra}
    keep = (
        "PATH",
        "LD_",
        "CUDA",
        "NVIDIA_",
        "LANG",
        "LC_",
        "TRITON_",
        "TORCH",
        "OMP_",
        "MKL_",
        "CC",
        "VIRTUAL_ENV",
        "CONDA",
    )
    mine = {key: value for key, value in os.environ.items() if key.startswith(keep)}
    scratch = str(confinement.scratch)
    private = {
        "HOME": scratch,
        "TMPDIR": scratch,
        "XDG_CACHE_HOME": scratch,
        "TRITON_CACHE_DIR": f"{scratch}/triton",
    }
    return {**mine, **private, "PYTHONDONTWRITEBYTECODE": "1", **extra}
