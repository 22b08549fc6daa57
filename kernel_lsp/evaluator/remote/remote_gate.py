"""A gate whose verdicts come from another machine, over a link. Engines and models stay here."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from kernel_lsp import foreign, wire
from kernel_lsp.config import Settings
from kernel_lsp.confinement import entry
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator.gate import Gate
from kernel_lsp.evaluator.remote.connection import NONSENSE, GateConnection, MachineLost
from kernel_lsp.evaluator.remote.gate_server import MAX_FILE_BYTES
from kernel_lsp.evaluator.remote.link import Link
from kernel_lsp.evaluator.remote.machines import Machine
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing
from kernel_lsp.evaluator.tuning import (
    STAGE_S,
    Race,
    TunedVariant,
    TunerClient,
    TuneRequest,
    TunerLost,
)
from kernel_lsp.interpreter import Probe
from kernel_lsp.records import Evidence, Program, Progress, Report

MAX_TRIES = 2


class RemoteGate(Gate):
    """As `Gate`; ``link`` may serve several, and belongs to whoever has made it."""

    def __init__(
        self,
        link: Link,
        *,
        device_sharing: DeviceSharing | None = None,
        cache: Path | None = None,
        readable: Iterable[Path] = (),
    ) -> None:
        super().__init__(device_sharing=device_sharing, cache=cache, readable=readable)
        self._link = link

    async def elsewhere(self) -> Probe:
        """What the other machine's interpreter is and has."""
        return (await self._link.look()).probe

    async def _evidence_of(
        self, request: EvaluationRequest, report: Report, wanted: Callable[[], bool]
    ) -> Evidence:
        """As of `Gate`, from there. A connection that is lost meanwhile is made again, once."""
        for left in reversed(range(MAX_TRIES)):
            async with self._link.connected(report) as connection:
                try:
                    asked = self._question(request)
                    answer = await connection.ask("evaluate", report, wanted, **asked)
                    found = wire.from_json(Evidence, answer)
                    _require_asked(found, request, self._link.machine)
                    return found
                except MachineLost as error:
                    if not left:
                        raise
                    report(Progress(phase="queue", message=f"{error.cause}: once more"))
        raise AssertionError("unreachable")

    async def _expect(self, request: EvaluationRequest, report: Report) -> None:
        with contextlib.suppress(EvaluationError):  # what is missing is made for the candidate
            async with self._link.connected(report) as connection:
                await connection.ask("expect", report, **self._question(request))

    @contextlib.asynccontextmanager
    async def tuner(
        self, request: TuneRequest, report: Report | None = None
    ) -> AsyncIterator[TunerClient]:
        """Yields a tuner on the other machine, as `Gate.tuner` does here."""
        say = report or (lambda progress: None)
        async with contextlib.AsyncExitStack() as stack:
            try:
                connection = await stack.enter_async_context(self._link.connected(say))
                held = connection.holding("tuner", say, **self._question(request))
                number = await stack.enter_async_context(held)
            except MachineLost as error:
                raise TunerLost(error.cause, error.remedy) from error
            yield RemoteTuner(connection, number)

    def _question(self, request: EvaluationRequest | TuneRequest) -> dict[str, Any]:
        """With what must hold there."""
        rules = self.device_sharing.rules
        return {
            "request": wire.to_json(request),
            "files": _digests(request.reference),
            "required": sorted(entry.required_layers()),
            "rules": {f.name: getattr(rules, f.name) for f in fields(rules)},
        }


@contextlib.asynccontextmanager
async def open_gate(settings: Settings, cache: Path | None = None) -> AsyncIterator[Gate]:
    """The gate of these settings, here or on another machine, for a command that ends with it.

    ``cache``: of a gate here (see `Gate`); one elsewhere keeps nothing."""
    if settings.judge_on is None:
        async with Gate(cache=cache) as gate:
            yield gate
        return
    async with (
        Link(settings.judge_on, wait_s=settings.gpu_wait_s) as link,
        RemoteGate(link) as gate,
    ):
        yield gate


class RemoteTuner(TunerClient):
    """As `TunerClient`."""

    def __init__(self, connection: GateConnection, number: int) -> None:
        self._connection, self._number = connection, number
        self.known = Race()
        self.waited_s = 0.0

    async def race(self, variants: Sequence[TunedVariant], what: str = "rewrites") -> Race:
        """Time the variants against each other there, and give what is known of all so far."""
        await self._tune("race", variants=variants, what=what)
        return self.known

    async def enter(self, variants: Sequence[TunedVariant], what: str = "rewrites") -> list[str]:
        """Enter variants into the race there; the names of those that were taken."""
        return await self._tune("enter", variants=variants, what=what)

    async def timed(self, names: Sequence[str], rounds: int, seconds: float = STAGE_S) -> Race:
        """Times every named variant for the same number of rounds there; returns all that is known."""
        await self._tune("timed", names=names, rounds=rounds, seconds=seconds)
        return self.known

    async def _tune(self, do: str, **fields: Any) -> list[str]:
        try:
            reply = await self._connection.ask("tune", tuner=self._number, do=do, **fields)
        except EvaluationError as error:
            raise TunerLost(error.cause, error.remedy) from error
        try:
            self.known = wire.from_json(Race, reply["known"])
            self.waited_s = float(reply["waited_s"])
            return list(map(str, reply["names"]))
        except (KeyError, TypeError, ValueError) as error:
            raise TunerLost(f"could not tune on {self._connection.machine}: {NONSENSE}") from error


def _require_asked(found: Evidence, request: EvaluationRequest, machine: Machine) -> None:
    """Raises EvaluationError where the evidence is of something else: what is kept, repeated and
    written into files later is what was asked here."""
    asked = (request.reference, request.candidate_source, request.candidate_entry)
    if (found.reference, found.candidate_source, found.candidate_entry) != asked:
        raise EvaluationError(
            f"could not judge on {machine}: it judged another program than it was asked about",
            "do not use this machine before you know why",
        )


def _digests(program: Program) -> dict[str, str]:
    """What of a recorded program must lie on that machine too: file -> SHA-256."""
    if program.home is None:
        return {}
    files = (program.home.path, program.home.snapshot, program.home.pickler)
    found = {}
    for file in files:
        with contextlib.suppress(OSError):
            content = foreign.read_bytes(Path(file), most=MAX_FILE_BYTES)
            found[file] = hashlib.sha256(content).hexdigest()
    return found


def judged_by(here: Probe, there: Probe) -> Probe:
    """``here`` reads code and proves rewrites, ``there`` judges them. Raises EvaluationError where
    what is proved of one torch need not hold for the other."""
    if _release(here.torch) != _release(there.torch):
        raise EvaluationError(
            f"could not judge elsewhere: torch {there.torch} judges there, and torch {here.torch} "
            f"reads the code here",
            f"install torch {_release(there.torch)} here, or torch {_release(here.torch)} there",
        )
    return replace(there, python=here.python, version=here.version)


def _release(version: str | None) -> str:
    """2.13 of 2.13.0+cu130."""
    return ".".join((version or "").split("+")[0].split(".")[:2])
