"""A model server of our own: start it behind its keeper, wait until it answers, stop it when
nobody asks.

One server serves every job of this process that wants the same one, also after the job that
started it, until it has been idle for so long. It needs no event loop: asked from several, it is
still one server. Not covered: which program with which arguments (vllm.py), what is asked of it
(openai.py)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets as random_keys
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from kernel_lsp import process
from kernel_lsp.agents import secrets
from kernel_lsp.errors import BackboneError
from kernel_lsp.records import Progress, Report

KEEPER = Path(__file__).with_name("keeper.py")
MARK = "model-server-"
"""Begins the value of process.MARK in a keeper, its server and all that this starts."""
LOAD_S = 1800.0
"""A large model from a slow disk, or downloaded on its first use. Reported every second; can be
cancelled."""
LOOK_S = 0.25
STOP_S = 8.0
"""The keeper's two graces and what it needs beside them."""
TAIL_LINES = 20
LOG_BYTES = 4 * 1024 * 1024
"""A longer log is begun anew at the next start."""


@dataclass(frozen=True, kw_only=True)
class ServerOrder:
    """What to start."""

    name: str
    """As users know it: ``vLLM``."""
    argv: Sequence[str]
    environment: dict[str, str] = field(repr=False)
    """Holds the server's key."""
    log: Path
    origin: str
    """Where it will answer; ``/health`` is 200 once it is well."""
    idle_s: float


class ModelServer:
    """One running server; :func:`Server.stop` or the end of this process ends it."""

    def __init__(self, order: ServerOrder) -> None:
        self.order = order
        self.mark = MARK + random_keys.token_hex(8)
        self._using = 0
        self._used = time.monotonic()
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._why = ""
        order.log.parent.mkdir(parents=True, exist_ok=True)
        if order.log.exists() and order.log.stat().st_size > LOG_BYTES:
            order.log.unlink()
        self._log_begin = order.log.stat().st_size if order.log.exists() else 0
        self._keeper = self._kept()
        self._watch()

    @property
    def alive(self) -> bool:
        """Whether the keeper of the server still runs."""
        return self._keeper.poll() is None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Holds the server for the block: it does not count as idle meanwhile."""
        with self._lock:
            self._using += 1
        try:
            yield
        finally:
            with self._lock:
                self._using -= 1
                self._used = time.monotonic()

    async def well(self, report: Report) -> None:
        """Wait until it answers. Raises BackboneError when it ends before, or after LOAD_S."""
        with self.used():
            async with httpx2.AsyncClient(trust_env=False, timeout=5.0) as client:
                shown = 0
                while not await self._answers(client):
                    seconds = int(time.monotonic() - self._begun)
                    if not self.alive:
                        raise self.ended("while it loaded the model")
                    if seconds > LOAD_S:
                        await self.stop("it took too long to load")
                        raise BackboneError(
                            f"{self.order.name} was not ready after {LOAD_S:.0f} s", self._remedy()
                        )
                    if seconds > shown:
                        shown = seconds
                        report(
                            Progress(
                                phase="model",
                                message=f"{self.order.name} loads the model, {seconds} s",
                            )
                        )
                    await asyncio.sleep(LOOK_S)

    def ended(self, when: str) -> BackboneError:
        """Why it is gone, with the last lines of its log."""
        said = self._why or self._last_word()
        return BackboneError(f"{self.order.name} ended {when}: {said}", self._remedy())

    async def stop(self, why: str) -> None:
        """End it and everything it has started. Safe to call twice."""
        await asyncio.to_thread(self.stop_now, why)

    def stop_now(self, why: str) -> None:
        """Ends the server and everything that it started, and waits until they are gone; ``why`` is
        the error that a later request gets."""
        if self.alive and not self._why:
            self._why = why
        if self._timer is not None:
            self._timer.cancel()
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(STOP_S)
        kill_marked(self.mark)  # normally nobody: a keeper that hangs, strays that left their group
        self._keeper.wait()
        self._why = self._why or self._last_word()
        self._keeper.stdout.close()

    def tail(self) -> str:
        """The last lines of this run's log."""
        try:
            with self.order.log.open("rb") as log:
                log.seek(max(self._log_begin, self.order.log.stat().st_size - 64 * 1024))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        lines = [line for line in text.splitlines() if line.strip()][-TAIL_LINES:]
        return secrets.redact("\n".join(line[:300] for line in lines))[0]

    def _kept(self) -> subprocess.Popen[bytes]:
        environment = {**self.order.environment, process.MARK: self.mark}
        keeper = subprocess.Popen(
            [sys.executable, "-I", str(KEEPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath, process.MARK: self.mark},
            start_new_session=True,
        )
        # `python -m` puts it first on sys.path: a folder with our log alone.
        folder = str(self.order.log.parent)
        order = {"argv": list(self.order.argv), "environment": environment, "folder": folder}
        assert keeper.stdin is not None
        keeper.stdin.write(json.dumps({**order, "log": str(self.order.log)}).encode() + b"\n")
        keeper.stdin.flush()
        return keeper

    def _watch(self) -> None:
        left = self._used + self.order.idle_s - time.monotonic()
        self._timer = threading.Timer(max(left, 0.05), self._if_idle)
        self._timer.daemon = True
        self._timer.start()

    def _if_idle(self) -> None:
        with self._lock:
            if self._using:
                self._used = time.monotonic()
            idle = time.monotonic() - self._used >= self.order.idle_s
        if idle:
            self.stop_now(f"nobody asked it for {self.order.idle_s:g} s")
        elif self.alive and not self._why:
            self._watch()

    async def _answers(self, client: httpx2.AsyncClient) -> bool:
        try:
            return (await client.get(f"{self.order.origin}/health")).status_code == 200
        except httpx2.HTTPError:
            return False

    def _last_word(self) -> str:
        assert self._keeper.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            said = json.loads(self._keeper.stdout.readline() or b"{}")
            if "failed" in said:
                self._why = f"it cannot be started: {said['failed']}"
            elif "exit" in said:
                self._why = _in_words(int(said["exit"]))
        return self._why or "its keeper was ended"

    def _remedy(self) -> str:
        tail = self.tail()
        return f"its log is {self.order.log}" + (f" and ends with:\n{tail}" if tail else "")


_running: dict[object, ModelServer] = {}
_starting = threading.Lock()


def running(key: object, order: Callable[[], ServerOrder]) -> ModelServer:
    """The server for this key, started when there is none (any more)."""
    with _starting:
        server = _running.get(key)
        if server is None or not server.alive:
            if server is not None:
                server.stop_now("it is started again")
            end_leftovers()
            server = _running[key] = ModelServer(order())
        return server


def stop_all() -> None:
    """End every server of this process: takes up to STOP_S each."""
    with _starting:
        for server in _running.values():
            server.stop_now("kernel-lsp ended")
        _running.clear()


def end_leftovers() -> None:
    """Servers whose keeper was killed: nobody ends them otherwise."""
    kept: set[str] = set()
    found: set[str] = set()
    for pid, mark in _find_marked():
        found.add(mark)
        with contextlib.suppress(OSError):
            if str(KEEPER).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                kept.add(mark)
    for mark in found - kept:
        kill_marked(mark)


def kill_marked(mark: str) -> None:
    """Kills all processes that carry the mark, like process.end_marked, where no event loop runs,
    and with their process groups: vLLM's engine and worker, which compute, write their titles over
    the environment that holds the mark."""
    end = time.monotonic() + process.STRAYS_S
    while (
        strays := [pid for pid, other in _find_marked() if other == mark]
    ) and time.monotonic() < end:
        for stray in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(os.getpgid(stray), signal.SIGKILL)
        time.sleep(0.005)


def _find_marked() -> Iterator[tuple[int, str]]:
    """(pid, mark) of everything that belongs to some model server of this user."""
    begin = f"{process.MARK}={MARK}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                for line in (entry / "environ").read_bytes().split(b"\0"):
                    if line.startswith(begin):
                        yield int(entry.name), line.decode().partition("=")[2]


def _in_words(code: int) -> str:
    return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
