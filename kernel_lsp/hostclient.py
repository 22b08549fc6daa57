"""The server's face of the host process: start it late, talk to it, survive its death.

Requests carry a number; replies and progress arrive in any order. A host that dies fails the
requests it had (WorkerLost), is started again by the next one, and is left alone for a while when
it keeps dying. Journal events are sent again until the host has acknowledged them, so a crash
loses none."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kernel_lsp import process, wire
from kernel_lsp.config import Settings
from kernel_lsp.errors import Busy, EvaluationError, KernelLspError, WorkerLost
from kernel_lsp.records import Event, Job, Outcome, Progress

log = logging.getLogger(__name__)
GOODBYE_S = 0.6
BACKOFF_S = (0.0, 0.5, 2.0, 10.0, 30.0)
"""Pause after the n-th crash in a row; a finished request resets the count."""
MAX_UNSENT_EVENTS = 10_000


class HostClient:
    """One host process, started on first use. ``notice`` takes what the user should know beside
    replies."""

    def __init__(
        self,
        data_dir: str,
        *,
        client: str | None = None,
        notice: Callable[[str], None] = log.warning,
        module: str = "kernel_lsp.host",
        python: str = sys.executable,
    ) -> None:
        self._client, self._notice = client, notice
        self._data_dir, self._module, self._python = data_dir, module, python
        self._child: process.Child | None = None
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reports: dict[int, Callable[[Progress], None]] = {}
        self._unsent: deque[Event] = deque(maxlen=MAX_UNSENT_EVENTS)
        self._recording: asyncio.Task[None] | None = None
        self._crashes = 0
        self._not_before = 0.0
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The host's process id; None: it does not run."""
        return self._child.process.pid if self._child is not None and self._child.alive else None

    async def optimize(
        self, job: Job, settings: Settings, report: Callable[[Progress], None]
    ) -> Outcome:
        """Run one job. Cancelling the caller ends the job and everything it started."""
        number = next(self._numbers)
        self._reports[number] = report
        message = {"op": "optimize", "job": wire.to_json(job), "settings": wire.to_json(settings)}
        message["client"] = self._client
        try:
            return wire.from_json(Outcome, await self._request(number, message))
        except asyncio.CancelledError:
            await self._tell({"op": "cancel", "id": number})
            raise
        finally:
            self._reports.pop(number, None)

    async def learn(self, folder: str, settings: Settings) -> str | None:
        """One piece of idle work on kept rewrites: what it came to, or None where there is none.

        Cancelling the caller ends it; it goes on there the next time."""
        number = next(self._numbers)
        message = {"op": "learn", "folder": folder, "settings": wire.to_json(settings)}
        try:
            line = await self._request(number, message)
        except asyncio.CancelledError:
            await self._tell({"op": "cancel", "id": number})
            raise
        return None if line is None else str(line)

    async def cached(self, jobs: Sequence[Job], settings: Settings) -> list[Outcome | None]:
        """What is already known about these targets; nothing is run."""
        message = {
            "op": "cached",
            "jobs": wire.to_json(list(jobs)),
            "settings": wire.to_json(settings),
        }
        answers = await self._request(next(self._numbers), message)
        return [None if answer is None else wire.from_json(Outcome, answer) for answer in answers]

    async def ask(self, op: str, **fields: Any) -> Any:
        """One question to the host's journal, answered with JSON values."""
        return await self._request(next(self._numbers), {"op": op, **wire.to_json(fields)})

    def record(self, events: Sequence[Event]) -> None:
        """Hand events to the journal: never waits, never raises."""
        self._unsent.extend(events)
        if events and not self._closed and (self._recording is None or self._recording.done()):
            self._recording = asyncio.get_running_loop().create_task(self._send_events())

    async def close(self) -> None:
        """End the host; what it had not yet written down gets a moment."""
        self._closed = True
        if self._child is None or not self._child.alive:
            if self._recording is not None:
                self._recording.cancel()
            return
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(self._say_goodbye(), GOODBYE_S)
        await self._child.kill()
        if self._reader is not None:
            self._reader.cancel()

    async def _say_goodbye(self) -> None:
        if self._recording is not None:
            await self._recording
        await self._tell({"op": "shutdown"})
        assert self._child is not None
        await self._child.process.wait()

    async def _send_events(self) -> None:
        while self._unsent:
            batch = list(itertools.islice(self._unsent, 500))
            try:
                await self.ask("record", events=batch)
            except KernelLspError as error:
                self._notice(f"journal: {error}")
                if not isinstance(error, WorkerLost) or self._closed:
                    return  # the journal itself failed; asking again would not help
                await asyncio.sleep(max(1.0, self._not_before - time.monotonic()))
                continue
            for _ in batch:
                self._unsent.popleft()

    async def _request(self, number: int, message: dict[str, Any]) -> Any:
        child = await self._running()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await child.send({**message, "id": number})
            answer = await future
        except ConnectionError as error:
            raise WorkerLost("the host went away while it was asked") from error
        finally:
            self._waiting.pop(number, None)
        self._crashes = 0
        return answer

    async def _tell(self, message: dict[str, Any]) -> None:
        if self._child is not None and self._child.alive:
            with contextlib.suppress(ConnectionError):
                await self._child.send(message)

    async def _running(self) -> process.Child:
        async with self._starting:
            if self._closed:
                raise WorkerLost("the server is ending")
            if (
                self._child is not None
                and self._child.alive
                and self._reader
                and not self._reader.done()
            ):
                return self._child
            if (wait := self._not_before - time.monotonic()) > 0:
                remedy = (
                    f"it is started again in {wait:.0f} s; the log of the server has its last words"
                )
                raise WorkerLost("the host keeps dying", remedy)
            limits = process.Limits(file_bytes=None)
            self._child = await process.start(
                self._module, self._data_dir, python=self._python, limits=limits
            )
            self._reader = asyncio.get_running_loop().create_task(self._read(self._child))
            return self._child

    async def _read(self, child: process.Child) -> None:
        try:
            while True:
                message, _ = await child.receive()
                self._dispatch(message)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, KeyError) as error:
            await child.kill()
            if not self._closed:
                self._note_crash(child, error)
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(
                        WorkerLost("the host process ended", "ask again; it is started anew")
                    )

    def _note_crash(self, child: process.Child, error: Exception) -> None:
        self._crashes += 1
        pause = BACKOFF_S[min(self._crashes, len(BACKOFF_S)) - 1]
        self._not_before = time.monotonic() + pause
        log.error(
            "host ended (%s, exit %s):\n%s", error, child.process.returncode, child.log[-4000:]
        )

    def _dispatch(self, message: dict[str, Any]) -> None:
        number = message.get("id")
        if message["op"] == "notice":
            self._notice(str(message["text"]))
            return
        if message["op"] == "progress" and number in self._reports:
            self._reports[number](wire.from_json(Progress, message["progress"]))
            return
        future = self._waiting.get(number) if isinstance(number, int) else None
        if future is None or future.done():
            return
        if message["op"] == "reply":
            future.set_result(message["value"])
        elif message["op"] == "failed":
            kind = EvaluationError if message.get("lasting", True) else Busy
            future.set_exception(kind(message["cause"], message.get("remedy")))
