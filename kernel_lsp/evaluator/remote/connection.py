"""One connection to a gate server: starts ssh or srun, asks, and notices when nobody answers.

    connection = await connect(machine, wait_s, report)
    value = await connection.ask("evaluate", report, request=…)

Cancelling an `ask` ends there what was asked for. When the connection is lost, everybody who waits
gets MachineLost, and the gate server ends by itself: its input has ended, or it hears nothing."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import secrets
import shlex
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from kernel_lsp import secret_names, wire
from kernel_lsp.errors import (
    Busy,
    EvaluationError,
    OutOfMemory,
    Unconfined,
    Withdrawn,
    WorkerLost,
)
from kernel_lsp.evaluator.remote import messages, shipping
from kernel_lsp.evaluator.remote.gate_server import GateAbout
from kernel_lsp.evaluator.remote.machines import Machine
from kernel_lsp.evaluator.sharing.device_lock import Disturbed
from kernel_lsp.evaluator.tuning import TunerLost
from kernel_lsp.records import Progress, Report

RUN = "import sys,base64;exec(base64.b64decode(sys.stdin.readline()))"
GATE_SERVER = "kernel_lsp.evaluator.remote.gate_server"
SHIM = Path(__file__).with_name("shim.py")
OLDEST_PYTHON = (3, 11)
NONSENSE = "what it said is no message of kernel-lsp"
LOOK_S = 0.2
"""Between looks at whether a verdict is still wanted."""
GOODBYE_S = 15.0
"""For the gate server to end its processes and to remove what was unpacked."""
LOST_GOODBYE_S = 1.0
"""For ssh or srun to end where the machine is silent, or says what is not to be believed."""
FAILURES = {
    kind.__name__: kind
    for kind in (Busy, Disturbed, OutOfMemory, TunerLost, Unconfined, Withdrawn, WorkerLost)
}


class MachineLost(WorkerLost):
    """The machine that judges cannot be reached, or is not any more."""


class NoMessage(Exception):
    """A line that has our token and is no message of ours: the other end is not to be believed."""


class GateConnection:
    """Made by :func:`connect`; end it with :meth:`close`."""

    def __init__(self, machine: Machine, process: asyncio.subprocess.Process, token: str) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.machine = machine
        self.lost: MachineLost | None = None
        self._process, self._token = process, token
        self._writer, self._reader, self._errors = process.stdin, process.stdout, process.stderr
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._opened: dict[int, asyncio.Future[None]] = {}
        self._reports: dict[int, Report] = {}
        self._log = b""
        self._tasks = [asyncio.create_task(self._collect_errors())]
        self.about: GateAbout

    async def begin(self) -> None:
        """Send our code there. Raises EvaluationError when no gate can run there."""
        shim = f"{SHIM.read_text()}\nrun({self._token!r}, {GATE_SERVER!r})\n"
        self._writer.write(base64.b64encode(shim.encode()) + b"\n")
        try:
            hello = (await self._next("hello"))["about"]
            _refuse_interpreter(hello, self.machine)
            self._writer.write(shipping.shipment())
            self.about = wire.from_json(GateAbout, (await self._next("about"))["about"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise await self._failure(NONSENSE) from error
        _refuse_server(self.about, self.machine)
        self._tasks += [asyncio.create_task(self._receive()), asyncio.create_task(self._beat())]

    async def ask(
        self,
        op: str,
        report: Report = lambda progress: None,
        wanted: Callable[[], bool] = lambda: True,
        **fields: Any,
    ) -> Any:
        """The value of its answer. Raises EvaluationError as the gate there does, MachineLost."""
        number = self._send(op, report, **fields)
        waiting = self._waiting[number]
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=LOOK_S)
                if not wanted():
                    self._write({"op": "unwanted", "id": number})
                    return await waiting
            return waiting.result()
        finally:
            self._end(number)

    @contextlib.asynccontextmanager
    async def holding(
        self, op: str, report: Report = lambda progress: None, **fields: Any
    ) -> AsyncIterator[int]:
        """Yields the number of something that is kept there for the block. Raises as `ask` does."""
        number = self._send(op, report, **fields)
        opened = self._opened[number] = asyncio.get_running_loop().create_future()
        try:
            waiting = self._waiting[number]
            await asyncio.wait([waiting, opened], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
            yield number
        finally:
            self._end(number)

    async def close(self) -> None:
        """Say goodbye; nothing is left there when this returns, unless the machine is lost."""
        goodbye_s = GOODBYE_S if self.lost is None else LOST_GOODBYE_S
        self._lose("it was closed")
        for task in self._tasks[1:]:
            task.cancel()
        self._writer.close()
        try:
            await asyncio.wait_for(self._process.wait(), goodbye_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._tasks[0].cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports say goodbye in the loop's next turn

    def _send(self, op: str, report: Report, **fields: Any) -> int:
        if self.lost is not None:
            raise self.lost
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._reports[number] = report
        self._write({"op": op, "id": number, **fields})
        return number

    def _write(self, message: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(messages.encode(self._token, message))

    def _end(self, number: int) -> None:
        """Nobody waits for it any more."""
        waiting = self._waiting.pop(number)
        if not waiting.done():
            waiting.cancel()
            self._write({"op": "cancel", "id": number})
        elif not waiting.cancelled():
            waiting.exception()  # seen, also where only the block's own error counts
        self._opened.pop(number, None)
        self._reports.pop(number, None)

    async def _next(self, op: str) -> dict[str, Any]:
        """Raises MachineLost."""
        while line := await self._reader.readline():
            message = messages.decode(self._token, line)
            if message is not None and message.get("op") == op:
                return message
        raise await self._failure("")

    async def _receive(self) -> None:
        try:
            while line := await asyncio.wait_for(self._reader.readline(), messages.SILENCE_S):
                if (message := messages.decode(self._token, line)) is not None:
                    self._take(message)
            why = ""
        except TimeoutError:
            why = f"nothing was heard of it for {messages.SILENCE_S:.0f} s"
        except NoMessage:
            why = NONSENSE
        except ValueError:
            why = "it said more in one line than it may"
        self._lose(await self._failure(why))

    def _take(self, message: dict[str, Any]) -> None:
        """Raises NoMessage: a machine that says what nobody understands must not keep those waiting
        who ask it."""
        try:
            self._dispatch(message)
        except Exception as error:
            raise NoMessage from error

    def _dispatch(self, message: dict[str, Any]) -> None:
        op, number = message["op"], int(message.get("id", 0))
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done():
            return
        if op == "progress":
            self._reports[number](wire.from_json(Progress, message["progress"]))
        elif op == "opened" and number in self._opened:
            self._opened[number].set_result(None)
        elif op == "reply":
            waiting.set_result(message["value"])
        elif op == "failed":
            kind = FAILURES.get(message["kind"], EvaluationError)
            remedy = message.get("remedy")
            waiting.set_exception(kind(str(message["cause"]), remedy and str(remedy)))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(messages.BEAT_S)
            self._write({"op": "beat"})

    async def _collect_errors(self) -> None:
        while chunk := await self._errors.read(8192):
            self._log = (self._log + chunk)[-65536:]

    async def _failure(self, why: str) -> MachineLost:
        """What ssh, srun or the interpreter said last tells most."""
        await asyncio.wait([self._tasks[0]], timeout=1.0)
        lines = [line.strip() for line in self._log.decode(errors="replace").splitlines()]
        said = next((line for line in reversed(lines) if line), "")
        why = why or said[:300] or "the connection ended without a word"
        return MachineLost(f"could not judge on {self.machine}: {why}", _remedy(said, self.machine))

    def _lose(self, failure: MachineLost | str) -> None:
        if self.lost is not None:
            return
        if isinstance(failure, str):
            failure = MachineLost(f"could not judge on {self.machine}: {failure}")
        self.lost = failure
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(failure)


async def connect(machine: Machine, wait_s: float) -> GateConnection:
    """A connection to a gate on that machine, which is started there. Raises EvaluationError when
    there is no gate within ``wait_s``, MachineLost among them."""
    token = f"@kernel-lsp-{secrets.token_hex(8)}"
    command = machine.command("-I", "-c", RUN)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=secret_names.environment_without_secrets(),
            start_new_session=True,
            limit=messages.MAX_LINE_BYTES,
        )
    except OSError as error:
        cause = f"could not judge on {machine}: {command[0]} does not start: {error.strerror}"
        raise EvaluationError(cause, f"install {command[0]} on this machine") from error
    connection = GateConnection(machine, process, token)
    try:
        async with asyncio.timeout(wait_s):
            await connection.begin()
    except TimeoutError:
        await connection.close()
        cause = f"could not judge on {machine}: it was not ready within {wait_s:.0f} s"
        raise MachineLost(cause, f"try `{_by_hand(machine)}`, or wait longer: gpu_wait_s") from None
    except BaseException:
        await connection.close()
        raise
    return connection


def _refuse_interpreter(hello: dict[str, Any], machine: Machine) -> None:
    version = ".".join(map(str, hello["python"]))
    if tuple(hello["python"]) < OLDEST_PYTHON:
        raise EvaluationError(
            f"could not judge on {machine}: {machine.python} there is Python {version}, and "
            f"kernel-lsp needs {'.'.join(map(str, OLDEST_PYTHON))} or later",
            f"name another interpreter there: {machine.setting.rstrip('/')}/PATH/TO/python",
        )
    if hello["system"] != "linux":
        cause = f"could not judge on {machine}: it runs {hello['system']}"
        raise EvaluationError(cause, "candidates can be confined on Linux alone; name such one")


def _refuse_server(about: GateAbout, machine: Machine) -> None:
    python = about.probe.python
    if about.missing:
        names = " ".join(about.missing)
        raise EvaluationError(
            f"could not judge on {machine}: {python} there has no {', '.join(about.missing)}",
            f"install it there: {python} -m pip install {names}",
        )
    if about.probe.problem is not None:
        raise EvaluationError(f"could not judge on {machine}: {about.probe.problem}")
    if about.probe.torch is None:
        raise EvaluationError(
            f"could not judge on {machine}: {python} there has no torch",
            "install torch for it, or name an interpreter that has it: judge_on = "
            "ssh://HOST/PATH/TO/python",
        )


def _remedy(said: str, machine: Machine) -> str:
    if "not found" in said or "No such file" in said:
        return f"name the interpreter there: {machine.setting.rstrip('/')}/PATH/TO/python"
    return f"see what `{_by_hand(machine)}` says in a terminal; it must work without a question"


def _by_hand(machine: Machine) -> str:
    return shlex.join(machine.command("-V"))
