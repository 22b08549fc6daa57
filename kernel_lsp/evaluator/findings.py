"""What an evaluation has found so far, and asking a worker so that every failure is a finding."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from kernel_lsp.errors import WorkerLost
from kernel_lsp.evaluator.processes import crashes
from kernel_lsp.evaluator.processes.sandbox import Party
from kernel_lsp.records import Check, CompiledKernel, EvalStatus, Interval, Profile, Timing

MAX_NOTES = 5
MAX_DETAIL = 1000
"""Characters of one text of a verdict: a candidate chooses the name of its exception."""


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_DETAIL]


class Rejected(Exception):
    """The verdict is in, and it is no."""

    def __init__(self, status: EvalStatus, detail: str, *, memory: bool = False) -> None:
        """``memory``: for lack of it, which may be no fault of the candidate's."""
        super().__init__(detail)
        self.status, self.detail, self.memory = status, _one_line(detail), memory


@dataclass
class PartialEvaluation:
    """What is known so far; turned into an Evaluation at any point."""

    checks: list[Check] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    shapes: dict[tuple[str, ...], None] = field(default_factory=dict)
    """Types and sizes of the tensors of every call whose values were accepted, in the order of the
    trials."""
    trials: list[dict[str, Any]] = field(default_factory=list)
    """For the evidence: every trial, the failed and the skipped included, with the keys of
    `records.Trial`: number, family, variation, candidate_error, reference_error, tolerance,
    passed, detail. Further keys are ignored and missing ones are unknown."""
    samples_ms: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For the evidence: provider -> {"call": [ms of every round in the order they ran], "device":
    [the same on the device's clock; may be missing], "dropped": [numbers of the rounds that are
    outliers]}."""
    timings: tuple[Timing, ...] = ()
    speedups: dict[str, Interval] = field(default_factory=dict)
    device_timings: tuple[Timing, ...] = ()
    device_speedups: dict[str, Interval] = field(default_factory=dict)
    kernels: tuple[CompiledKernel, ...] = ()
    peak_bytes: dict[str, int] = field(default_factory=dict)
    least_ms: float | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    profiles: tuple[Profile, ...] = ()
    unsure: str = ""
    """Why it is unknown whether the candidate is faster; the first reason."""

    def doubt(self, why: str) -> None:
        """Times say too little, for a reason that is none of the candidate's."""
        self.unsure = self.unsure or _one_line(why)

    def check(self, name: str, passed: bool | None, detail: str = "") -> None:
        """Adds a check to the evidence; ``passed`` None: it could not be made."""
        self.checks.append(Check(name=name, passed=passed, detail=_one_line(detail)))


COMPARED = ("run", "backward", "second")
"""What the reference may fail at just as well: the judge tells by doing the same."""


async def candidate(
    worker: Party, do: str, timeout_s: float, blobs: list[bytes] | None = None, **fields: Any
) -> tuple[dict[str, Any], list[bytes]]:
    """Ask the worker; raises Rejected for everything a candidate can do to the process."""
    start = time.monotonic()
    try:
        reply, answer = await worker.ask(do, timeout_s, blobs, **fields)
    except WorkerLost as error:
        if time.monotonic() - start >= timeout_s:
            where = "loading" if do == "load" else "running"
            detail = f"{where} the candidate took longer than {timeout_s:.0f} s"
            raise Rejected(EvalStatus.TIMED_OUT, f"{detail}; it was ended") from error
        likely = f"; {crashes.LIKELY}" if crashes.signal_of(error) else ""
        text = f"the candidate's process died: {error}{likely}"
        memory = "memory" in str(error) or "SIGKILL" in str(error)
        raise Rejected(EvalStatus.RUNTIME_ERROR, text, memory=memory) from error
    if not isinstance(reply, dict):
        raise Rejected(
            EvalStatus.CHEATED, "the worker answered with something that is no message of ours"
        )
    if "error" in reply and do not in COMPARED:
        memory = reply.get("memory") is True
        raise Rejected(failure_kind(reply), str(reply["error"]), memory=memory)
    return reply, answer


def failure_kind(reply: dict[str, Any]) -> EvalStatus:
    """What sort of failure a worker reports; only failures, whatever it writes."""
    named = str(reply.get("kind"))
    failures = (EvalStatus.COMPILE_ERROR, EvalStatus.RUNTIME_ERROR, EvalStatus.WRONG_RESULT)
    return EvalStatus(named) if named in failures else EvalStatus.RUNTIME_ERROR


def guard_notes(notes: list[dict[str, str]], found: PartialEvaluation) -> None:
    """Raises Rejected for what the run-time guards have noted, as failed checks; returns where they
    noted nothing."""
    if not notes:
        return
    for note in notes[:MAX_NOTES]:
        found.check(str(note["name"]), False, str(note["detail"])[:300])
    raise Rejected(
        EvalStatus.CHEATED, "; ".join(str(note["detail"])[:300] for note in notes[:MAX_NOTES])
    )
