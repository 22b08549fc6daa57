"""Hand-made candidates, verdicts and judges for the tests of the search. Standard library only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_lsp import wire
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import (
    Attempt,
    Candidate,
    EvalStatus,
    Evaluation,
    Interval,
    Move,
    Program,
    Proposal,
    SearchJudgement,
    SearchTask,
    Site,
    SourceEdit,
    Step,
    TargetKind,
    Timing,
    Verdict,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.search import features
from kernel_lsp.search.fitness import fitness

WORKLOAD = Workload(name="x", origin=WorkloadOrigin.PRAGMA)
CREATED = "2026-01-01T00:00:00+00:00"


def task(device: str = "cpu", **more: Any) -> SearchTask:
    program = Program(source="", entry="Model", kind=TargetKind.MODULE)
    return SearchTask(
        qualname="Model", fingerprint="f", program=program, workload=WORKLOAD, device=device, **more
    )


def named(steps: Sequence[Step]) -> str:
    return json.dumps([[s.skill, s.site, sorted(s.parameters.items())] for s in steps])


def candidate(steps: Sequence[Step] = (), *, text: str = "", name: str | None = None) -> Candidate:
    """Its id says what its steps are."""
    edit = SourceEdit(qualname="Model", target=text or "x" * 300)
    made = name or named(steps)
    return Candidate(
        id=made, edit=edit, program="", entry="Model", steps=tuple(steps), summary=made
    )


def verdict(speed: float | None, *, full: bool = True, compiled: float | None = None) -> Evaluation:
    """Right with this lower bound over eager; None: wrong. ``compiled``: over torch.compile, in
    full only."""
    if speed is None:
        return Evaluation(status=EvalStatus.WRONG_RESULT, device="cpu", detail="wrong")
    found = {"eager": speed} | ({"compile": compiled or speed} if full else {})
    speedups = {
        name: Interval(low=low, mid=1.02 * low, high=1.05 * low) for name, low in found.items()
    }
    timing = Timing(
        provider="candidate",
        median_ms=1 / speed,
        p20_ms=1.0,
        p80_ms=1.0,
        num_reps=9,
        cold_cache=True,
    )
    return Evaluation(
        status=EvalStatus.PASSED, device="cpu", timings=(timing,), speedups=speedups, seconds=0.5
    )


def proposal(made: Candidate, evaluation: Evaluation) -> Proposal:
    best = evaluation.speedup
    faster = best is not None and best.low > 1.05 and "compile" in evaluation.speedups
    right = Verdict.CORRECT if evaluation.status is EvalStatus.PASSED else Verdict.REJECTED
    return Proposal(
        id=made.id,
        fingerprint="f",
        fingerprint_after="g",
        qualname="Model",
        workload=WORKLOAD,
        candidate=made,
        evaluation=evaluation,
        verdict=Verdict.FASTER if faster else right,
        created=CREATED,
    )


def attempt(
    number: int,
    speed: float | None,
    made: Candidate | None = None,
    *,
    full: bool = True,
    **more: Any,
) -> Attempt:
    found = proposal(made or candidate(name=f"c{number}"), verdict(speed, full=full))
    cell = features.cell(found.candidate)
    told: dict[str, Any] = {
        "move": Move.MUTATE,
        "proposer": "mutate/1",
        "created": CREATED,
        "cell": cell,
    }
    return Attempt(
        number=number,
        proposal=found,
        complete=full,
        fitness=fitness(found.evaluation),
        **(told | more),
    )


@dataclass
class ScriptedJudge:
    """Says how fast a candidate is by a function of it, and remembers what it was asked."""

    speed: Callable[[Candidate], float | None]
    seconds: float = 0.0
    asked: list[tuple[str, bool]] = field(default_factory=list)
    at_work: int = 0
    log: Path | None = None
    """Every verdict is appended to this file before it is returned, as evidence is."""

    async def __call__(self, made: Candidate, *, full: bool) -> SearchJudgement:
        self.asked.append((made.id, full))
        self.at_work += 1
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.at_work -= 1
        found = proposal(made, verdict(self.speed(made), full=full))
        if self.log:
            with self.log.open("a") as file:
                file.write(json.dumps([made.id, full, wire.to_json(found)]) + "\n")
        return SearchJudgement(proposal=found)


@dataclass
class ScriptedWorkshop:
    """A program with given sites; steps apply in any order, each site once."""

    given: Sequence[Site]
    refused: Callable[[Sequence[Step]], bool] = lambda steps: False
    applied: list[str] = field(default_factory=list)

    async def sites(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        taken = {(step.skill, step.site) for step in steps}
        return tuple(site for site in self.given if (site.skill, site.site) not in taken)

    async def apply(self, steps: Sequence[Step]) -> Candidate:
        self.applied.append(named(steps))
        if self.refused(steps):
            raise RewriteError("refused", "choose another")
        return candidate(steps)

    async def write(self, code: str, parent: Candidate | None) -> Candidate:
        return candidate(text=code, name=code)

    def marked(self, parent: Candidate | None) -> str:
        return ""


def site(skill: str, *, benefit: float = 0.5, **parameters: list[Any]) -> Site:
    return Site(
        skill=skill, site="n", summary=skill, proofs=(), parameters=parameters, benefit=benefit
    )


def step(skill: str, **parameters: Any) -> Step:
    return Step(skill=skill, site="n", parameters=parameters)
