"""Which of many variants of a rewrite is worth judging: compiled in parallel, timed by successive
halving.

    async with gate.tuner(request, report) as tuner:
        race = await tuner.race(variants)       # may be asked again with others
        race.order                              # fastest first

One confined process for all variants of one program (running/tuner.py). It decides nothing: a
variant is right when the gate says so, and its times here are never shown as claims. Everything
that goes wrong with a variant drops that variant; when the process itself is lost, TunerLost is
raised and the caller judges without it. Ending the block, or cancelling, ends the process at once.
Standard library only: the parent's half."""

from __future__ import annotations

import contextlib
import math
import secrets
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kernel_lsp.errors import EvaluationError, WorkerLost
from kernel_lsp.evaluator import successive_halving
from kernel_lsp.evaluator.processes.compiled import CompiledKernels
from kernel_lsp.evaluator.processes.pool import ZygotePool
from kernel_lsp.evaluator.processes.sandbox import Party, Sandbox
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.undisturbed import Alone
from kernel_lsp.records import Program, Progress, Report, Workload

ORIGINAL = "the original"
"""The program itself takes part in every stage: it says how much there is to win."""
PREPARE_S, COMPILE_S, CALL_S = 40.0, 40.0, 20.0
STAGE_S = 1.5
"""Longest that one stage of a race may take; slow programs then meet less often."""


class TunerLost(EvaluationError):
    """The process that compares variants is gone: nothing is known about them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneRequest:
    """One program whose variants shall be compared."""

    reference: Program
    workload: Workload
    device: str
    """cuda or cpu."""
    python: str = sys.executable
    uses_triton: bool = False
    """Any of the variants."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedVariant:
    name: str
    source: str
    entry: str


@dataclass
class Race:
    """What is known so far; times are those of the last stage that a variant took part in."""

    median_ms: dict[str, float] = field(default_factory=dict)
    """Of every variant that ran, and of ORIGINAL."""
    order: list[str] = field(default_factory=list)
    """The variants that ran: the winner of the last race, then the others by their medians."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Variant -> why it takes no part."""

    def speedup(self, name: str) -> float:
        """Estimated, against the original; never a claim."""
        return self.median_ms[ORIGINAL] / self.median_ms[name] if name in self.median_ms else 0.0


class TunerClient:
    """One process with a reference, asked to compare. Made by :func:`open_tuner`."""

    def __init__(self, party: Party, alone: Alone, report: Report) -> None:
        self._party, self._alone, self._report = party, alone, report
        self.known = Race()
        self.waited_s = 0.0
        """For turns at the device, so far: what others take is not this search's time."""
        self._entered: set[str] = set()

    async def race(self, variants: Sequence[TunedVariant], what: str = "rewrites") -> Race:
        """Compare these, and those of earlier races that are named again. Raises TunerLost."""
        await self._halve(await self.enter(variants, what), what)
        return self.known

    async def enter(self, variants: Sequence[TunedVariant], what: str = "rewrites") -> list[str]:
        """Compile and try these; the names of those that can be timed. Raises TunerLost."""
        new = [
            v for v in variants if v.name not in self._entered and v.name not in self.known.dropped
        ]
        if new:
            self._say(f"compiling {len(new)} variants of {what}")
            reply = await self._ask("compile", COMPILE_S, variants=new)
            problems = reply.get("problems") or {}
            for variant in new:
                if problem := problems.get(variant.name, "it was not compiled"):
                    self.known.dropped[variant.name] = str(problem)[:300]
        for variant in new:
            if variant.name not in self.known.dropped:
                reply = await self._ask("try", CALL_S, variant=variant)
                if "error" in reply:
                    self.known.dropped[variant.name] = str(reply["error"])[:300]
                else:
                    self._entered.add(variant.name)
        return [v.name for v in variants if v.name not in self.known.dropped]

    async def timed(self, names: Sequence[str], rounds: int, seconds: float) -> Race:
        """The same number of rounds for all of these, which have entered: for a survey, not for a
        winner."""
        async with self._turn():
            await self._times([ORIGINAL, *names], rounds, seconds)
        return self.known

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        asked = time.monotonic()
        async with self._alone(self._party):
            self.waited_s += time.monotonic() - asked
            yield

    async def _halve(self, names: list[str], what: str) -> None:
        async with self._turn():
            if len(names) == 1:
                await self._times([ORIGINAL, *names], successive_halving.FIRST_ROUNDS)
            for most, rounds in successive_halving.stages(len(names)):
                if len(names) < 2:
                    break
                self._say(f"tuning {what}: {len(names)} left")
                times = await self._times([ORIGINAL, *names], rounds)
                names = successive_halving.survivors({name: times[name] for name in names}, most)
        others = sorted(
            set(self.known.median_ms) - {ORIGINAL, *names}, key=self.known.median_ms.__getitem__
        )
        self.known.order = [*names, *others]

    async def _times(
        self, names: Sequence[str], rounds: int, seconds: float = STAGE_S
    ) -> dict[str, list[float]]:
        reply = await self._ask(
            "race", CALL_S + 4 * seconds, names=names, rounds=rounds, seconds=seconds
        )
        times = usable(reply, names)
        self.known.median_ms.update({name: median(values) for name, values in times.items()})
        return times

    async def _ask(self, do: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        try:
            reply, _ = await self._party.ask(do, timeout_s, **fields)
        except WorkerLost as error:
            raise TunerLost(f"could not tune: {error.cause}", error.remedy) from error
        return reply

    def _say(self, message: str) -> None:
        self._report(Progress(phase="tune", message=message))


def usable(reply: dict[str, Any], names: Sequence[str]) -> dict[str, list[float]]:
    """The times of these in a reply, which candidate code may have written. Raises TunerLost."""
    if "error" in reply:
        raise TunerLost(f"could not tune: {str(reply['error'])[:300]}")
    try:
        times = {name: [float(t) for t in reply["times_ms"][name]] for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise TunerLost(
            f"could not tune: no times in the answer ({type(error).__name__})"
        ) from error
    if not all(values and all(0 < t < math.inf for t in values) for values in times.values()):
        raise TunerLost("could not tune: times that no clock shows")
    return times


@contextlib.asynccontextmanager
async def open_tuner(
    request: TuneRequest,
    pool: ZygotePool,
    store: CompiledKernels | None,
    alone: Alone,
    report: Report,
) -> AsyncIterator[TunerClient]:
    """A tuner with its reference loaded. Raises TunerLost when the reference does not run."""
    asked = EvaluationRequest(
        reference=request.reference,
        candidate_source="",
        candidate_entry="",
        workload=request.workload,
        device=request.device,
        python=request.python,
        uses_triton=request.uses_triton,
    )
    async with Sandbox(asked, pool, store=store) as sandbox:
        tuner = TunerClient(await sandbox.tuner(), alone, report)
        program, workload, seed = request.reference, request.workload, secrets.randbits(32)
        await tuner._ask(
            "prepare", PREPARE_S, program=program, workload=workload, seed=seed, name=ORIGINAL
        )
        yield tuner
