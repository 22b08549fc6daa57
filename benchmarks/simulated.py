"""Simulated people: sessions of jobs, offers and answers, written by the product's own journal and tracker.

What they were offered is a task's measured plans; what they do is `User`'s rule. Used by offline.py and
offline_kernels.py. Not covered: what real people keep.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kernel_lsp import wire
from kernel_lsp.journal import Journal, outcomes
from kernel_lsp.journal.tracker import Identity, Offer, Tracker
from kernel_lsp.records import (
    Candidate,
    EvalStatus,
    Evaluation,
    Proposal,
    Step,
    Timing,
    Verdict,
    Workload,
    WorkloadOrigin,
)
from trainer.records import Outcome

WORKLOAD = Workload(name="get_inputs", origin=WorkloadOrigin.GET_INPUTS)
CLIENT = "simulated user"
OFFERED = 1.05
"""Lower bound over eager from which the product offers."""


class Measured(Protocol):
    """One plan of a task, with what was recorded of it."""

    @property
    def steps(self) -> tuple[Step, ...]: ...
    @property
    def outcome(self) -> Outcome: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """Accepts what looks fast and keeps what is: half of the rewrites of ``taste`` speedup are taken, nearly
    all of 1.5 times as much. In daily use it is measured once more, with a scatter of ``scatter``; below
    ``keeps`` it is taken back."""

    taste: float = 1.2
    sharpness: float = 10.0
    keeps: float = 1.15
    scatter: float = 0.05

    def accepts(self, speedup: float, draw: random.Random) -> bool:
        return draw.random() < 1 / (1 + math.exp(-self.sharpness * math.log(speedup / self.taste)))

    def stays(self, speedup: float, draw: random.Random) -> bool:
        return speedup * math.exp(draw.gauss(0.0, self.scatter)) >= self.keeps


class Sessions:
    """A journal that simulated people fill, by the product's own code."""

    def __init__(self, journal: Journal, user: User, seed: int) -> None:
        self._journal, self._user, self._seed = journal, user, seed
        self.happened: Counter[str] = Counter()

    def work(self, number: int, task: str, plans: Sequence[Measured], clock: float) -> None:
        """One session: a job for one target, an offer, an answer."""
        folder = f"/home/user{number}/project"
        proposals = [proposal(task, plan, clock) for plan in plans]
        place = {"folder": folder, "path": f"{folder}/{task}.py"}
        outcomes.save_proposals(
            self._journal, proposals, **place, keep_source=False, client=CLIENT, training=True
        )
        fast = [p for p in proposals if p.verdict is Verdict.FASTER]
        best = max(fast, key=lambda p: _lower(p), default=None)
        if best is None:
            self.happened["nothing to offer"] += 1
            return
        self._answered(best, folder, task, random.Random(f"{self._seed}/{number}"), clock)

    def _answered(self, made: Proposal, folder: str, name: str, draw: random.Random, clock: float) -> None:
        tracker = Tracker(session=f"s{folder}", client=CLIENT)
        where = Identity(folder=folder, path=f"{name}.py", qualname=made.qualname)
        offer = Offer(
            proposal=made.id,
            identity=where,
            before=made.fingerprint,
            after=made.fingerprint_after,
            skills=tuple(step.skill for step in made.candidate.steps),
            speedup=_lower(made),
        )
        events = tracker.offered(offer, clock)
        if not self._user.accepts(_lower(made), draw):
            events += tracker.dismissed(made.id, "proposal", "slower", clock + 5)
            self.happened["dismissed"] += 1
        else:
            events += tracker.chosen(offer, clock + 5)
            events += tracker.observed(where, made.fingerprint_after, "change", clock + 6)
            events += tracker.observed(where, made.fingerprint_after, "save", clock + 9)
            if self._user.stays(made.evaluation.speedups["eager"].mid, draw):
                self.happened["kept"] += 1
            else:
                events += tracker.observed(where, made.fingerprint, "save", clock + 600)
                self.happened["reverted"] += 1
        self._journal.record(events)


def proposal(task: str, plan: Measured, clock: float) -> Proposal:
    """A recorded plan as the gate's verdict would be stored."""
    outcome = plan.outcome
    timings = [("candidate", outcome.candidate_ms), *outcome.baseline_ms.items()]
    evaluation = Evaluation(
        status=EvalStatus(outcome.status.value),
        device="cuda",
        speedups=dict(outcome.speedups),
        timings=tuple(
            Timing(provider=name, median_ms=ms, p20_ms=ms, p80_ms=ms, num_reps=1, cold_cache=True)
            for name, ms in timings
            if ms
        ),
    )
    text = wire.dumps(list(plan.steps))
    name = hashlib.sha256(f"{task}\0{text}".encode()).hexdigest()[:16]
    lower = outcome.lower_bound or 0.0
    passed = evaluation.status is EvalStatus.PASSED
    slower = Verdict.CORRECT if passed else Verdict.REJECTED
    return Proposal(
        id=name,
        fingerprint=fingerprint(task),
        fingerprint_after=f"after {name}",
        qualname="Model",
        workload=WORKLOAD,
        candidate=Candidate(id=name, edit=None, program="", entry="Model", steps=plan.steps),
        evaluation=evaluation,
        verdict=Verdict.FASTER if passed and lower >= OFFERED else slower,
        created=datetime.datetime.fromtimestamp(clock, datetime.UTC).isoformat(timespec="seconds"),
    )


def _lower(made: Proposal) -> float:
    return made.evaluation.speedups["eager"].low


def fingerprint(task: str) -> str:
    """By which a trajectory that is read back is known."""
    return hashlib.sha256(f"0\0{task}".encode()).hexdigest()[:16]
