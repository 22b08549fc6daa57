"""A gate on the machine that judges: started by shim.py, asked in lines of text.

    evaluate    one candidate -> evaluation and evidence
    expect      what a first candidate will need, until it is cancelled
    tuner       a tuner, until it is cancelled; `tune` asks it
    cancel      ends any of these
    unwanted    nobody waits for the timing of a candidate any more

It ends when its input does, and when nothing was heard for half a minute; all its processes end
with it. Turns on the device are this machine's, shared with everybody who uses kernel-lsp here
under the same user. Not covered: consent, which was given where the code lies; what the consent
requires of a sandbox comes with each question."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import platform
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernel_lsp import foreign, interpreter, wire
from kernel_lsp.confinement import entry, held
from kernel_lsp.errors import EvaluationError, KernelLspError
from kernel_lsp.evaluator.remote import messages

ROOT = Path(__file__).parents[3]
"""What was unpacked; it goes with the gate server."""
NEEDED = ("psutil", "filelock", "platformdirs")
ENDING_S = 10.0
MAX_FILE_BYTES = 256 * 1024**2
"""Of a recorded program's file that both machines must have."""
WireMessage = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class GateAbout:
    """What judges there."""

    host: str
    probe: interpreter.Probe
    sandbox: str
    """What confines a child there, in words."""
    left_open: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Packages without which there is no gate."""
    problem: str | None = None
    """Why nothing can be confined there."""


async def _look() -> GateAbout:
    tried = await held.try_layers()
    return GateAbout(
        host=platform.node(),
        probe=await interpreter.probe(sys.executable),
        sandbox=tried.words,
        left_open=tried.open,
        problem=tried.problem,
    )


class GateServer:
    """All questions of one connection."""

    def __init__(self, say: Callable[[WireMessage], None]) -> None:
        self._say = say
        self._gates: dict[Any, Any] = {}
        self._tuners: dict[int, Any] = {}
        self._unwanted: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def handle(self, message: WireMessage) -> None:
        """Begins or cancels what one message asks for; returns at once."""
        op, number = str(message["op"]), int(message.get("id", 0))
        if op == "cancel" and number in self._tasks:
            self._tasks[number].cancel()
        elif op == "unwanted":
            self._unwanted.add(number)
        elif op in _OPERATIONS:
            task = self._tasks[number] = asyncio.create_task(self._answer(number, message))
            task.add_done_callback(lambda _: self._forget(number))

    def _forget(self, number: int) -> None:
        self._tasks.pop(number, None)
        self._unwanted.discard(number)

    async def close(self) -> None:
        """Cancels all that is asked and closes the gates."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*(gate.close() for gate in self._gates.values()))

    async def _answer(self, number: int, message: WireMessage) -> None:
        try:
            required = message.get("required", entry.required_layers())
            with entry.requiring(frozenset(required)):
                value = await _OPERATIONS[message["op"]](self, number, message)
            self._say({"op": "reply", "id": number, "value": wire.to_json(value)})
        except asyncio.CancelledError:
            self._say({"op": "failed", "id": number, "kind": "", "cause": "cancelled"})
        except KernelLspError as error:
            words = {"cause": error.cause, "remedy": error.remedy}
            self._say({"op": "failed", "id": number, "kind": type(error).__name__, **words})
        except Exception as error:  # one question must not end the others
            cause = f"could not judge: the evaluator itself failed: {type(error).__name__}: {error}"
            self._say({"op": "failed", "id": number, "kind": "", "cause": cause})

    def _gate(self, message: WireMessage) -> Any:
        from kernel_lsp import config
        from kernel_lsp.evaluator.gate import Gate
        from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, SharingRules

        asked = wire.from_json(SharingRules, {**message["rules"], "data_dir": ""})
        rules = replace(asked, data_dir=config.default_data_dir())
        if rules not in self._gates:
            self._gates[rules] = Gate(device_sharing=DeviceSharing(rules), cache=ROOT / "compiled")
        return self._gates[rules]

    def _request(self, kind: type[Any], message: WireMessage) -> Any:
        for path, digest in message.get("files", {}).items():
            _require_file(path, digest)
        return replace(wire.from_json(kind, message["request"]), python=sys.executable)

    def _reporter(self, number: int) -> Callable[[Any], None]:
        return lambda progress: self._say(
            {"op": "progress", "id": number, "progress": wire.to_json(progress)}
        )

    async def _evaluate(self, number: int, message: WireMessage) -> Any:
        from kernel_lsp.evaluator.request import EvaluationRequest

        kept: list[Any] = []
        await self._gate(message).evaluate(
            self._request(EvaluationRequest, message),
            self._reporter(number),
            kept.append,
            lambda: number not in self._unwanted,
        )
        where = {"host": platform.node(), "python": sys.executable}
        found = kept[0].evaluation
        judged = replace(found, environment={**found.environment, "judged_on": where})
        return replace(kept[0], evaluation=judged)

    async def _expect(self, number: int, message: WireMessage) -> None:
        from kernel_lsp.evaluator.request import EvaluationRequest

        request = self._request(EvaluationRequest, message)
        async with self._gate(message).expecting(request, self._reporter(number)):
            await self._stay(number)

    async def _tuner(self, number: int, message: WireMessage) -> None:
        from kernel_lsp.evaluator.tuning import TuneRequest

        request = self._request(TuneRequest, message)
        async with self._gate(message).tuner(request, self._reporter(number)) as tuner:
            self._tuners[number] = tuner
            try:
                await self._stay(number)
            finally:
                del self._tuners[number]

    async def _tune(self, number: int, message: WireMessage) -> Any:
        from kernel_lsp.evaluator.tuning import TunedVariant

        tuner = self._tuners.get(message["tuner"])
        if tuner is None:
            raise EvaluationError("could not tune: the tuner has ended")
        do, names = message["do"], message.get("names", [])
        if do == "timed":
            await tuner.timed(names, message["rounds"], message["seconds"])
        else:
            variants = wire.from_json(list[TunedVariant], message["variants"])
            found = await (tuner.enter if do == "enter" else tuner.race)(variants, message["what"])
            names = found if do == "enter" else []
        return {"known": tuner.known, "waited_s": tuner.waited_s, "names": names}

    async def _stay(self, number: int) -> None:
        self._say({"op": "opened", "id": number})
        await asyncio.Event().wait()


_OPERATIONS: dict[str, Callable[[GateServer, int, WireMessage], Awaitable[Any]]] = {
    "evaluate": GateServer._evaluate,
    "expect": GateServer._expect,
    "tuner": GateServer._tuner,
    "tune": GateServer._tune,
}


def _require_file(path: str, digest: str) -> None:
    """Raises EvaluationError where a recorded program does not lie here too."""
    with contextlib.suppress(OSError):
        content = foreign.read_bytes(Path(path), most=MAX_FILE_BYTES)
        if hashlib.sha256(content).hexdigest() == digest:
            return
    raise EvaluationError(
        f"could not judge: a recorded program is judged where it lives, and {path} is not on "
        f"{platform.node()}, or is another one there",
        "keep the program and the data folder on a file system that both machines share, or run "
        "kernel-lsp there",
    )


@contextlib.contextmanager
def _protocol() -> Iterator[Callable[[bytes], None]]:
    """Standard output for messages alone: what anybody prints goes to standard error."""
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)

        def write(line: bytes) -> None:
            with contextlib.suppress(OSError):  # they have gone; the next read says so
                out.write(line)
                out.flush()

        yield write


async def _serve(token: str, write: Callable[[bytes], None]) -> None:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=messages.MAX_LINE_BYTES)
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb", buffering=0)
    )

    def say(message: WireMessage) -> None:
        write(messages.encode(token, message))

    async def beat() -> None:
        while True:
            await asyncio.sleep(messages.BEAT_S)
            say({"op": "beat"})

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, reader.feed_eof)
    missing = tuple(name for name in NEEDED if not _importable(name))
    beating, server = asyncio.create_task(beat()), GateServer(say)
    say({"op": "about", "about": wire.to_json(replace(await _look(), missing=missing))})
    with contextlib.suppress(TimeoutError):
        while line := await asyncio.wait_for(reader.readline(), messages.SILENCE_S):
            if (message := messages.decode(token, line)) is not None:
                server.handle(message)
    beating.cancel()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(server.close(), ENDING_S)


def _importable(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def main(token: str) -> None:
    """Answers the lines of one connection until it ends; ``token`` begins each line of ours."""
    sys.path.append(str(ROOT / "packages"))  # what is installed here comes first
    with _protocol() as write:
        asyncio.run(_serve(token, write))


if __name__ == "__main__":
    main(sys.argv[1])
