"""Which candidates are judged how thoroughly, and which one is offered.

The planner's best guess is judged in full: all trials, all baselines. The others are judged
quickly, against eager alone, because compiling a baseline costs more than everything else (20 of
50 s on two cores). One that looks better is judged in full again in fresh processes, and only that
second number counts: the best of several noisy results is always over-estimated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kernel_lsp import phases
from kernel_lsp.cache import Cache
from kernel_lsp.config import Settings
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest, evidence
from kernel_lsp.interpreter import Probe
from kernel_lsp.pipeline.prepare import Edited, PreparedJob, apply_candidate
from kernel_lsp.records import (
    Candidate,
    Check,
    EvalStatus,
    Evaluation,
    Evidence,
    Progress,
    Proposal,
    Report,
    SearchJudgement,
    Verdict,
    rank,
)
from kernel_lsp.search.fitness import LOOKS_BETTER

StillWanted = Callable[[], bool]
JudgeRequest = Callable[
    [EvaluationRequest, Report, evidence.Keep, StillWanted], Awaitable[Evaluation]
]
FULL, QUICK = EvaluationBudget(), EvaluationBudget(compile_s=0.0)
PATIENCE = 4.0
"""In the background, where everybody else goes first, each step may take this many times longer."""
EVIDENCE_FOLDER = "evidence"
"""In the user's data folder: one document per proposal, the last judgement of it, old ones
deleted. Like the cache it holds source text and may be deleted at any time."""
MAX_CHALLENGES = 2
PARALLEL_JUDGEMENTS = {"cuda": 4}
"""Candidates that are judged quickly at the same time, by device; one where nothing is said."""


@dataclass(frozen=True, kw_only=True)
class Tournament:
    """The candidates of one job on one device."""

    prepared: PreparedJob
    probe: Probe
    device: str
    """cuda or cpu."""
    settings: Settings
    judge: JudgeRequest
    """`Gate.evaluate`."""
    report: Report

    async def run(self, candidates: Sequence[Candidate]) -> tuple[Proposal, ...]:
        """Every candidate judged, best first. What was found when the job's time is over is
        kept."""
        if not candidates:
            return ()
        deadline = self.deadline()
        return await self.among([await self.in_full(candidates[0])], candidates[1:], deadline)

    def deadline(self) -> float:
        """When the time of a job that starts now is over, on the monotonic clock."""
        return time.monotonic() + self.settings.job_timeout_s

    async def among(
        self, full: list[Proposal], candidates: Sequence[Candidate], deadline: float
    ) -> tuple[Proposal, ...]:
        """Judges ``candidates`` quickly and the best of them in full, until the deadline; returns
        their proposals and those of ``full``, best first."""
        quick = await self._judge_quickly(candidates, deadline)
        for _ in range(MAX_CHALLENGES):
            challenger = _challenger(full, quick)
            if challenger is None or time.monotonic() > deadline:
                break
            quick.remove(challenger)
            full.append(await self.in_full(challenger.candidate))
        return tuple(sorted([*full, *quick], key=rank))

    async def _judge_quickly(
        self, candidates: Sequence[Candidate], deadline: float
    ) -> list[Proposal]:
        """All of them, in their order. On a GPU several at a time: one is compiled and tried while
        another is timed (the gate gives each its turn). On a CPU they would disturb each other."""
        waiting = iter(range(len(candidates)))
        found: dict[int, Proposal] = {}

        async def work() -> None:
            while time.monotonic() < deadline and (place := next(waiting, None)) is not None:
                self._count(place + 1, candidates)
                found[place] = (await self._judge(candidates[place], QUICK)).proposal

        workers = [
            asyncio.create_task(work()) for _ in range(PARALLEL_JUDGEMENTS.get(self.device, 1))
        ]
        try:
            await asyncio.gather(*workers)
        finally:  # a failure of one, or a cancellation, ends all
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return [found[place] for place in sorted(found)]

    async def in_full(self, candidate: Candidate, wanted: StillWanted = lambda: True) -> Proposal:
        """All trials, all baselines; announced when it is faster.

        Raises Withdrawn when it is not ``wanted`` any more by the time it would be timed.
        """
        self._say(f"judging in full: {candidate.summary}")
        with phases.phase("judge"):
            proposal = (await self._judge(candidate, FULL, wanted)).proposal
        if proposal.verdict is Verdict.FASTER:
            message = f"verified: {candidate.summary}"
            self.report(Progress(phase="evaluate", message=message, proposal=proposal))
        return proposal

    async def judged(self, candidate: Candidate, *, full: bool) -> SearchJudgement:
        """One verdict with what it rests on, for a search: a `JudgeRequest`. Announces nothing.

        Raises EvaluationError when the target itself cannot be judged by.
        """
        with phases.phase("judge"):
            return await self._judge(candidate, FULL if full else QUICK)

    def recalled(self, candidate: Candidate, *, full: bool) -> SearchJudgement | None:
        """The verdict on this attempt of this search that a killed process had reached, from its
        evidence.

        Who else has judged the same text does not count: its clocks were others.
        """
        folder = Path(self.settings.data_dir) / EVIDENCE_FOLDER
        path = folder / f"{self._name(candidate, self._device(candidate))}.json"
        after = apply_candidate(self.prepared, candidate)
        try:
            kept = evidence.read(path)
        except EvaluationError:
            # None is there, or the disk has lost half of it: it is judged again.
            return None
        mine = kept.provenance is not None and kept.provenance.search == candidate.search
        complete = kept.budget.get("compile_s") != QUICK.compile_s
        if after is None or candidate.search is None or not mine or complete != full:
            return None
        judged = replace(candidate, program=after.program.source, entry=after.program.entry)
        if (kept.candidate_source, kept.candidate_entry) != (judged.program, judged.entry):
            return None
        proposal = self._proposal(judged, after, kept.evaluation, FULL if full else QUICK)
        return SearchJudgement(
            proposal=replace(proposal, evidence=str(path), created=kept.created), evidence=kept
        )

    def _count(self, number: int, candidates: Sequence[Candidate]) -> None:
        message = f"candidate {number} of {len(candidates)}: {candidates[number - 1].summary}"
        self._say(message, done=number - 1, total=len(candidates))

    def _say(self, message: str, done: int | None = None, total: int | None = None) -> None:
        self.report(Progress(phase="evaluate", message=message, done=done, total=total))

    def _queued(self, progress: Progress) -> None:
        """Of what the gate says, only what it waits for: the job counts its candidates itself."""
        if progress.phase == "queue":
            self.report(progress)

    async def _judge(
        self, candidate: Candidate, budget: EvaluationBudget, wanted: StillWanted = lambda: True
    ) -> SearchJudgement:
        after = apply_candidate(self.prepared, candidate)
        if after is None:
            detail = "the edited file does not parse or has lost its target"
            refused = Evaluation(status=EvalStatus.COMPILE_ERROR, device=self.device, detail=detail)
            return SearchJudgement(proposal=self._proposal(candidate, None, refused, budget))
        judged = replace(candidate, program=after.program.source, entry=after.program.entry)
        kept: list[Evidence] = []
        evaluation = await self.judge(
            self._request(judged, budget), self._queued, kept.append, wanted
        )
        proposal = self._proposal(judged, after, evaluation, budget)
        if not kept:
            return SearchJudgement(proposal=proposal)
        found = replace(kept[0], threshold=self.settings.threshold, provenance=candidate.provenance)
        return SearchJudgement(proposal=self._with_evidence(proposal, found), evidence=found)

    def _with_evidence(self, proposal: Proposal, found: Evidence) -> Proposal:
        """The proposal with its file; where none can be written, its verdict says why."""
        folder = Path(self.settings.data_dir) / EVIDENCE_FOLDER
        try:
            path = evidence.keep(folder, proposal.id, found)
        except EvaluationError as error:
            checks = (
                *proposal.evaluation.checks,
                Check(name="evidence", passed=None, detail=str(error)),
            )
            return replace(proposal, evaluation=replace(proposal.evaluation, checks=checks))
        return replace(proposal, evidence=str(path))

    def expected(self) -> EvaluationRequest:
        """What a full judgement will ask the gate, before there is a candidate
        (`Gate.expecting`)."""
        patience = PATIENCE if self.prepared.job.background else 1.0
        return EvaluationRequest(
            reference=self.prepared.reference,
            candidate_source="",
            candidate_entry="",
            workload=self.prepared.workload,
            device=self.device,
            python=self.probe.python,
            uses_triton=self.device == "cuda" and self.probe.triton is not None,
            timeout_s=patience * self.settings.evaluate_timeout_s,
            budget=FULL if patience == 1 else _stretch(FULL, patience),
        )

    def _request(self, candidate: Candidate, budget: EvaluationBudget) -> EvaluationRequest:
        asked = self.expected()
        return replace(
            asked,
            candidate_source=candidate.program,
            candidate_entry=candidate.entry,
            device=self._device(candidate),
            uses_triton=candidate.uses_triton,
            budget=asked.budget if budget is FULL else replace(asked.budget, compile_s=0.0),
        )

    def _device(self, candidate: Candidate) -> str:
        return "interpreter" if candidate.uses_triton and self.device == "cpu" else self.device

    def _name(self, candidate: Candidate, device: str) -> str:
        before, workload = self.prepared.target.fingerprint, self.prepared.workload
        key = Cache.key(before=before, candidate=candidate.id, workload=workload, device=device)
        return key[:16]

    def _proposal(
        self,
        candidate: Candidate,
        after: Edited | None,
        evaluation: Evaluation,
        budget: EvaluationBudget,
    ) -> Proposal:
        return Proposal(
            id=self._name(candidate, evaluation.device),
            fingerprint=self.prepared.target.fingerprint,
            fingerprint_after=after.fingerprint if after else "",
            qualname=self.prepared.target.qualname,
            workload=self.prepared.workload,
            candidate=candidate,
            evaluation=evaluation,
            verdict=verdict(
                evaluation, self.settings, complete=budget is FULL, compiles=candidate.compiles
            ),
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )


def _stretch(budget: EvaluationBudget, by: float) -> EvaluationBudget:
    longer = {name: by * getattr(budget, name) for name in ("load_s", "call_s", "compile_s")}
    return replace(budget, **longer)


def verdict(
    evaluation: Evaluation, settings: Settings, *, complete: bool, compiles: bool = False
) -> Verdict:
    """The verdict on an evaluation: faster only when every baseline took part, the interval clears
    the threshold and it is worth a look.

    ``compiles``: the candidate is torch.compile itself."""
    if evaluation.status is EvalStatus.NOT_RUN:
        return Verdict.UNKNOWN
    if evaluation.status is not EvalStatus.PASSED:
        return Verdict.REJECTED
    saved_us = saved_microseconds(evaluation)
    worth_it = saved_us is not None and saved_us >= settings.minimum_saved_us
    may_compile = settings.torch_compile
    sure = complete and evaluation.faster(
        settings.threshold, compiles=compiles, may_compile=may_compile
    )
    return Verdict.FASTER if sure and worth_it else Verdict.CORRECT


def saved_microseconds(evaluation: Evaluation) -> float | None:
    """Time saved per call against how the target runs now; None when it was not timed."""
    times = {timing.provider: timing.median_ms for timing in evaluation.timings}
    ours, now = times.get("candidate"), times.get(evaluation.baseline or "")
    return (now - ours) * 1000 if ours is not None and now is not None else None


def _challenger(full: Sequence[Proposal], quick: Sequence[Proposal]) -> Proposal | None:
    """The quick result that looks best, when it looks better than the best full one."""
    bar = max((_over_eager(p) for p in full if p.verdict is Verdict.FASTER), default=1.0)
    better = [p for p in quick if _over_eager(p) > bar * LOOKS_BETTER]
    return max(better, key=_over_eager, default=None)


def _over_eager(proposal: Proposal) -> float:
    eager = proposal.evaluation.speedups.get("eager")
    return eager.mid if eager else 0.0
