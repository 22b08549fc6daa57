"""The order of the stages, and nothing else: analyze, select, propose, evaluate.

Runs in the host process behind the editor and in the command line's own process. Imports no torch:
engine, judge and worker are children. Each stage is a function from records to records; this is the
only file that knows which comes next. Journal and presentation belong to the callers.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kernel_lsp import __version__, analysis, interpreter, skillbook, workloads
from kernel_lsp.agents import plan
from kernel_lsp.cache import Cache
from kernel_lsp.config import Settings
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import EvaluationRequest, evaluate
from kernel_lsp.interpreter import Probe
from kernel_lsp.process import Confinement, Limits
from kernel_lsp.records import (
    Candidate,
    EvalStatus,
    Evaluation,
    Job,
    Outcome,
    Program,
    Progress,
    Proposal,
    Site,
    Skill,
    SkillMatch,
    Snapshot,
    Target,
    Verdict,
    Workload,
)
from kernel_lsp.rewrite import edit
from kernel_lsp.rewrite.client import Engine
from kernel_lsp.skillbook import Skillbook

Report = Callable[[Progress], None]
MAX_SKILLS = 20
"""Skills that are recalled for one target (daVinci-kernel's selection agent sees as many)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Everything about a job that is known without running any of the user's code."""

    job: Job
    snapshot: Snapshot
    target: Target
    program: Program
    workload: Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What a job works with: the interpreter, the device that judges, the skills as they are on disk now."""

    probe: Probe
    device: str
    """cuda or cpu."""
    skills: Skillbook


class Pipeline:
    """One user's settings, skills and cache. Make one per process; jobs may run one after another."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cache = Cache(Path(settings.data_dir) / "cache")

    async def optimize(self, job: Job, report: Report = lambda progress: None) -> Outcome:
        """The main job: every candidate for one target, judged, best first.

        An Outcome without a winner says why in ``note``. Raises KernelLspError when something of
        ours broke. Cancelling the task ends every child within half a second.
        """
        prepared = prepare(job)
        if isinstance(prepared, Outcome):
            return prepared
        bench = await self._bench(job)
        if known := self._known(prepared, bench):
            return known
        outcome = await self._run(prepared, bench, report)
        if not any(proposal.verdict is Verdict.UNKNOWN for proposal in outcome.proposals):
            self.cache.put(self._key(prepared, bench), outcome)
        return outcome

    async def cached(self, job: Job) -> Outcome | None:
        """What is already known about a job; runs nothing but (once) the interpreter's version probe."""
        prepared = prepare(job)
        return None if isinstance(prepared, Outcome) else self._known(prepared, await self._bench(job))

    def _known(self, prepared: Prepared, bench: Bench) -> Outcome | None:
        outcome = self.cache.get(self._key(prepared, bench))
        return replace(outcome, cached=True) if outcome else None

    async def _bench(self, job: Job) -> Bench:
        """Raises EvaluationError when there is no interpreter with torch, or no such device."""
        probe = await interpreter.probe(interpreter.find(job.folder, self.settings.python).path)
        if probe.remedy:
            raise EvaluationError("nothing can be measured here", probe.remedy)
        if job.device == "cuda" and not probe.cuda:
            raise EvaluationError(f"torch in {probe.python} sees no CUDA device", "use --device cpu or auto")
        device = "cuda" if probe.cuda and job.device != "cpu" else "cpu"
        return Bench(probe=probe, device=device, skills=self._library(job.folder))

    def _library(self, folder: str | None) -> Skillbook:
        """Read anew for each job (15 skills take 8 ms), so that an edited skill counts at once."""
        places = skillbook.folders(
            self.settings.skill_folders,
            workspace=Path(folder) if folder else None,
            data_dir=Path(self.settings.data_dir),
        )
        return skillbook.load(places)

    def _key(self, prepared: Prepared, bench: Bench) -> str:
        return Cache.key(
            version=__version__,
            fingerprint=prepared.target.fingerprint,
            program=prepared.program,
            workload=prepared.workload,
            probe=bench.probe,
            device=bench.device,
            skills=bench.skills.digest,
            budget=prepared.job.budget,
            threshold=self.settings.threshold,
        )

    async def _run(self, prepared: Prepared, bench: Bench, report: Report) -> Outcome:
        qualname = prepared.target.qualname
        report(Progress(phase="capture", message=f"reading {qualname} with torch.export"))
        async with self._engine(bench) as engine:
            executable = [skill for skill in bench.skills.skills if skill.executable]
            capture = await engine.open(prepared.program, prepared.workload, bench.device, executable)
            matches = bench.skills.select(capture.words, limit=MAX_SKILLS)
            sites = _recalled(capture.sites, matches, executable)
            proposed = plan.propose(sites, engine.propose, triton=bench.probe.triton is not None)
            candidates = await _shortlist(proposed, bench, budget=prepared.job.budget)
        proposals = await self._judge_all(prepared, candidates, bench, report)
        ranked = await self._confirm(prepared, proposals, bench, report)
        note = _note(capture.sites, candidates, ranked, bench)
        return Outcome(qualname=qualname, proposals=ranked, matches=matches, note=note)

    @asynccontextmanager
    async def _engine(self, bench: Bench) -> AsyncIterator[Engine]:
        """The user's definitions run in the engine (on fake tensors), so it is confined too."""
        with tempfile.TemporaryDirectory(prefix="kernel-lsp-engine-") as scratch:
            confinement = Confinement(scratch=Path(scratch))
            limits = Limits(memory_bytes=self.settings.memory_mb * 2**20)
            engine = Engine(python=bench.probe.python, limits=limits, confinement=confinement)
            try:
                yield engine
            finally:
                await engine.close()

    async def _judge_all(
        self, prepared: Prepared, candidates: Sequence[Candidate], bench: Bench, report: Report
    ) -> list[Proposal]:
        deadline = time.monotonic() + self.settings.job_timeout_s
        proposals: list[Proposal] = []
        for number, candidate in enumerate(candidates, start=1):
            if time.monotonic() > deadline:
                break  # what was found until now is kept
            message = f"candidate {number} of {len(candidates)}: {candidate.summary}"
            report(Progress(phase="evaluate", message=message, done=number - 1, total=len(candidates)))
            proposals.append(await self._judge(prepared, candidate, bench))
            if proposals[-1].verdict is Verdict.FASTER:
                report(Progress(phase="evaluate", message=f"verified: {candidate.summary}", done=number))
        return proposals

    async def _judge(self, prepared: Prepared, candidate: Candidate, bench: Bench) -> Proposal:
        """Judge what the user would get: the target sliced out of the edited file."""
        after = edited(prepared, candidate)
        if after is None:
            refused = Evaluation(
                status=EvalStatus.COMPILE_ERROR, device=bench.device, detail="the edited file does not parse"
            )
            return self._proposal(prepared, candidate, "", refused)
        program = analysis.slice_program(after.snapshot, after.target)
        judged = replace(candidate, program=program.source, entry=program.entry)
        request = self._request(prepared, judged, bench)
        evaluation = await self._evaluate(request)
        return self._proposal(prepared, judged, after.target.fingerprint, evaluation)

    async def _evaluate(self, request: EvaluationRequest) -> Evaluation:
        limit = self.settings.evaluate_timeout_s
        try:
            return await asyncio.wait_for(evaluate(request), limit)
        except TimeoutError:
            detail = f"no verdict within {limit:.0f} s (setting evaluate_timeout_s)"
            return Evaluation(status=EvalStatus.TIMED_OUT, device=request.device, detail=detail)

    def _request(self, prepared: Prepared, candidate: Candidate, bench: Bench) -> EvaluationRequest:
        interpreted = candidate.uses_triton and bench.device == "cpu"
        return EvaluationRequest(
            reference=prepared.program,
            candidate_source=candidate.program,
            candidate_entry=candidate.entry,
            workload=prepared.workload,
            device="interpreter" if interpreted else bench.device,
            python=bench.probe.python,
            uses_triton=candidate.uses_triton,
        )

    def _proposal(
        self, prepared: Prepared, candidate: Candidate, fingerprint_after: str, evaluation: Evaluation
    ) -> Proposal:
        fingerprint = prepared.target.fingerprint
        return Proposal(
            id=Cache.key(
                before=fingerprint,
                candidate=candidate.id,
                workload=prepared.workload,
                device=evaluation.device,
            )[:16],
            fingerprint=fingerprint,
            fingerprint_after=fingerprint_after,
            qualname=prepared.target.qualname,
            workload=prepared.workload,
            candidate=candidate,
            evaluation=evaluation,
            verdict=self._verdict(evaluation),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _verdict(self, evaluation: Evaluation) -> Verdict:
        if evaluation.status is EvalStatus.NOT_RUN:
            return Verdict.UNKNOWN
        if evaluation.status is not EvalStatus.PASSED:
            return Verdict.REJECTED
        saved_us = saved_microseconds(evaluation)
        worth_it = saved_us is not None and saved_us >= self.settings.minimum_saved_us
        return Verdict.FASTER if evaluation.faster(self.settings.threshold) and worth_it else Verdict.CORRECT

    async def _confirm(
        self, prepared: Prepared, proposals: list[Proposal], bench: Bench, report: Report
    ) -> tuple[Proposal, ...]:
        """The best of several noisy results is over-estimated: measure it again and believe the second."""
        ranked = sorted(proposals, key=_rank)
        while ranked and ranked[0].verdict is Verdict.FASTER:
            report(Progress(phase="evaluate", message=f"confirming: {ranked[0].candidate.summary}"))
            again = await self._judge(prepared, ranked[0].candidate, bench)
            ranked[0] = again
            if again.verdict is Verdict.FASTER:
                break
            ranked.sort(key=_rank)
        return tuple(ranked)


@dataclass(frozen=True, kw_only=True, slots=True)
class Edited:
    """The user's file with a candidate in place."""

    snapshot: Snapshot
    target: Target


def prepare(job: Job) -> Prepared | Outcome:
    """Find the target, its program and its workload; an Outcome says which of them is missing."""
    snapshot = Snapshot(uri=Path(job.path).absolute().as_uri(), text=job.text)
    found = analysis.analyze(snapshot)
    if found.problem:
        where = f"line {found.problem.line}: {found.problem.message}"
        return Outcome(qualname=job.qualname, note=f"the file does not parse ({where})")
    target = analysis.find_target(found, job.qualname)
    if target is None:
        names = ", ".join(t.qualname for t in found.targets) or "none"
        return Outcome(qualname=job.qualname, note=f"there is no such target in the file (found: {names})")
    program = analysis.slice_program(snapshot, target)
    known, problems = workloads.workloads_for(snapshot, target, job.folder)
    if not known:
        return Outcome(qualname=job.qualname, note="; ".join(str(p) for p in problems) or NO_WORKLOAD)
    return Prepared(job=job, snapshot=snapshot, target=target, program=program, workload=known[0])


NO_WORKLOAD = (
    "no workload: say what it is called with, for example by a comment above it, "
    "`# kernel-lsp: workload x=f32[128,4096]`, or by get_inputs() in the same file"
)


def edited(prepared: Prepared, candidate: Candidate) -> Edited | None:
    """The file after the candidate's edit, or None when it would not hold the target any more."""
    if candidate.edit is None:
        return None
    text = edit.apply_edit(prepared.snapshot.text, prepared.target.span, candidate.edit)
    snapshot = replace(prepared.snapshot, text=text)
    target = analysis.find_target(analysis.analyze(snapshot), prepared.target.qualname)
    return Edited(snapshot=snapshot, target=target) if target else None


def saved_microseconds(evaluation: Evaluation) -> float | None:
    """Time saved per call against the best baseline; None when it was not timed."""
    times = {timing.provider: timing.median_ms for timing in evaluation.timings}
    ours = times.pop("candidate", None)
    baselines = [times[provider] for provider in evaluation.speedups if provider in times]
    return (min(baselines) - ours) * 1000 if ours is not None and baselines else None


def _recalled(sites: Sequence[Site], matches: Sequence[SkillMatch], skills: Sequence[Skill]) -> list[Site]:
    """Sites of the recalled skills. A library that fits into the limit is recalled whole."""
    names = {match.skill for match in matches} if len(skills) > MAX_SKILLS else {s.name for s in skills}
    return [site for site in sites if site.skill in names]


async def _shortlist(candidates: AsyncIterator[Candidate], bench: Bench, *, budget: int) -> list[Candidate]:
    """Within the budget. Without a GPU, plain PyTorch first and one Triton candidate at most:
    the interpreter can show that a kernel is right, but never that it is fast."""
    proposed = [candidate async for candidate in candidates]
    if bench.device == "cuda":
        return proposed[:budget]
    plain = [candidate for candidate in proposed if not candidate.uses_triton]
    triton = [candidate for candidate in proposed if candidate.uses_triton]
    return [*plain[: budget - 1], *triton[:1]] if triton else plain[:budget]


def _rank(proposal: Proposal) -> tuple[int, float]:
    order = [Verdict.FASTER, Verdict.CORRECT, Verdict.UNKNOWN, Verdict.REJECTED]
    speedup = proposal.evaluation.speedup
    return order.index(proposal.verdict), -(speedup.mid if speedup else 0.0)


def _note(
    sites: Sequence[Site], candidates: Sequence[Candidate], ranked: Sequence[Proposal], bench: Bench
) -> str | None:
    """Why nothing is offered; None when something is."""
    if not sites:
        return "no skill applies to this program"
    if not candidates:
        unproved = next(
            (f"{p.claim} ({p.because})" for s in sites for p in s.proofs if not p.holds), "unknown"
        )
        return f"nothing could be proved safe to rewrite: {unproved}"
    best = ranked[0]
    if best.verdict is Verdict.FASTER:
        return None
    if best.verdict is Verdict.CORRECT and best.evaluation.speedup is None:
        return (
            f"a rewrite is right, but its speed is unknown without a GPU (judged by {best.evaluation.device})"
        )
    if best.verdict is Verdict.CORRECT and best.evaluation.speedup:
        low, high = best.evaluation.speedup.low, best.evaluation.speedup.high
        return f"the best rewrite is right but not surely faster on {bench.device}: {low:.2f}x to {high:.2f}x"
    return f"no rewrite passed: {best.evaluation.detail or best.evaluation.status.value}"
