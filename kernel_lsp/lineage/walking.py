"""The walk: from an expert kernel one accepted simplification after the other, until none is left.

Greedy and deterministic: operators in the order of the catalog, the most drastic choice of each
first, and what is accepted is taken. What was rejected is tried again only when nothing else is
left and the kernel has changed since. Every judgement lies on disk before the next is begun
(kept.py), so a run that was stopped goes on where it was. Accepted means: it compiles, the gate
finds it right against the kernel before, and it is not faster: the lower bound of its time over
the time before is at least `NOT_FASTER`. Triton's interpreter tells no times; there, what is right
is accepted, and the lineage says that it is not measured. Not covered: what the steps teach
(lessons.py)."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field, replace

from kernel_lsp import __version__
from kernel_lsp.errors import EvaluationError, RewriteError
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest
from kernel_lsp.library.store import now
from kernel_lsp.lineage import catalog, kept
from kernel_lsp.lineage.environment import INTERPRETER, Setup
from kernel_lsp.lineage.kept import Judgements
from kernel_lsp.presenter import lineages
from kernel_lsp.records import (
    Candidate,
    EvalStatus,
    Evaluation,
    Interval,
    Judgement,
    Lineage,
    LineageStep,
    Program,
    Progress,
    Report,
    Site,
    Step,
)
from kernel_lsp.rewrite.kernels.source import KernelSource

NOT_FASTER = 0.98
"""Two clocks on one kernel differ by about a hundredth: what costs nothing may be taken away."""
MAX_CHOICES = 6
MAX_TRIES = 3
"""Of one judgement that could not be reached: the device was busy, a process was lost."""
QUICK = EvaluationBudget(compile_s=0.0)
PATIENCE = 4.0
"""Times the usual limit: simple forms are slow, in the interpreter above all, and a limit is no
verdict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LineageState:
    """A program on the way, and the steps that led to it."""

    program: Program
    steps: tuple[Step, ...] = ()

    @property
    def id(self) -> str:
        """A short hash of the program: the same text is the same state."""
        return _identity(self.program)


def _identity(program: Program) -> str:
    return hashlib.sha256(f"{program.entry}\0{program.source}".encode()).hexdigest()[:16]


# --- the walk -----------------------------------------------------------------------------


@dataclass(kw_only=True)
class LineageWalk:
    """One walk under way."""

    on: Setup
    judgements: Judgements
    report: Report
    steps: list[LineageStep] = field(default_factory=list)
    avoided: dict[str, LineageStep] = field(default_factory=dict)
    """Rejected ones by what was tried; where it was tried twice, the later."""

    async def run(self) -> Lineage:
        """Walks to the end and returns the lineage. What was accepted until it is stopped can be
        had by `lineage`."""
        expert = state = LineageState(program=self.on.prepared.program)
        while (following := await self._next(state)) is not None:
            state = following
            kept.write(self.on.place, unfinished := self.lineage(), lineages.markdown(unfinished))
        whole = await self.judged(expert, state) if self.steps else None
        return replace(self.lineage(), finished=True, whole=whole)

    async def _next(self, state: LineageState) -> LineageState | None:
        """The first simplification that is accepted: what is new first, then what was rejected
        earlier."""
        for again in (False, True):
            for site in await self._sites(state):
                for candidate in await self._choices(state, site):
                    name = _name(candidate.steps[-1])
                    before = self.avoided.get(name)
                    known = before is not None and (
                        not again or before.judgement.parent == state.id
                    )
                    if not known and await self._accepted(state, site, candidate):
                        return _state(state, candidate)
        return None

    async def _sites(self, state: LineageState) -> list[Site]:
        found = await self.on.one.engine.look(state.steps)
        return sorted(found, key=lambda site: catalog.place(site.skill))

    async def _choices(self, state: LineageState, site: Site) -> tuple[Candidate, ...]:
        """What the operator makes there; one that fails on this text takes no part."""
        steps = [*state.steps, Step(skill=site.skill, site=site.site)]
        try:
            made = await self.on.one.engine.variants(steps, len(state.steps), MAX_CHOICES)
        except RewriteError as error:
            self.report(
                Progress(phase="lineage", message=f"{site.skill} is passed over: {error.cause}")
            )
            return ()
        return tuple(one for one in made if one.id != state.id)

    async def _accepted(self, state: LineageState, site: Site, candidate: Candidate) -> bool:
        step = candidate.steps[-1]
        tried = f"{site.skill}: {site.summary} {step.parameters or ''}".rstrip()
        text = f"{len(self.steps)} accepted; {tried}"
        self.report(Progress(phase="lineage", message=text))
        found = await self.judged(state, _state(state, candidate))
        accepted, reason = decide(found, measured=self.on.measured)
        made = LineageStep(
            operator=step.skill,
            site=step.site,
            parameters=step.parameters,
            summary=site.summary,
            proofs=site.proofs,
            judgement=found,
            accepted=accepted,
            reason=reason,
            text=candidate.program if accepted else "",
        )
        if accepted:
            self.steps.append(made)
        else:
            self.avoided[_name(step)] = made
        return accepted

    # --- judging -----------------------------------------------------------------------------

    async def judged(self, parent: LineageState, child: LineageState) -> Judgement:
        """The child against the parent, by the gate; what is on disk counts. Raises
        EvaluationError."""
        known = self.judgements.get(parent.id, child.id)
        if known is not None:
            return known
        evaluation = await self._evaluated(self._request(parent.program, child.program))
        found = judgement(parent, child, evaluation)
        self.judgements.add(found)
        return found

    async def _evaluated(self, request: EvaluationRequest) -> Evaluation:
        for again in range(MAX_TRIES):
            try:
                found = await self.on.one.gate.evaluate(request)
            except EvaluationError:
                if again == MAX_TRIES - 1:
                    raise
                continue
            if found.status is not EvalStatus.NOT_RUN:
                return found
            await asyncio.sleep(1.0)
        raise EvaluationError(
            found.detail or "could not be judged", "run it again, it goes on from there"
        )

    def _request(self, parent: Program, child: Program) -> EvaluationRequest:
        if self.on.device == INTERPRETER:
            parent, child = interpretable(parent), interpretable(child)
        return EvaluationRequest(
            reference=parent,
            candidate_source=child.source,
            candidate_entry=child.entry,
            workload=self.on.prepared.workload,
            device=self.on.device,
            python=self.on.one.bench.probe.python,
            require_speed=self.on.measured,
            uses_triton=True,
            timeout_s=PATIENCE * self.on.pipeline.settings.evaluate_timeout_s,
            budget=QUICK,
        )

    # --- the record --------------------------------------------------------------------------

    def lineage(self) -> Lineage:
        """What is known so far."""
        prepared, probe = self.on.prepared, self.on.one.bench.probe
        record = {"torch": probe.torch, "triton": probe.triton, "kernel_lsp": __version__}
        names = [s.judgement.device_name for s in (*self.steps, *self.avoided.values())]
        expert = LineageState(program=prepared.program)
        return Lineage(
            path=prepared.job.path,
            qualname=prepared.target.qualname,
            fingerprint=prepared.target.fingerprint,
            workload=prepared.workload.name,
            hardware=self.on.hardware,
            device_name=next((name for name in names if name), None),
            measured=self.on.measured,
            finished=False,
            versions={name: str(version) for name, version in record.items() if version},
            created=now(),
            expert=expert.id,
            text=expert.program.source,
            steps=tuple(self.steps),
            avoided=tuple(self.avoided.values()),
        )


def decide(found: Judgement, *, measured: bool) -> tuple[bool, str]:
    """Whether a simplification is accepted, and the reason in words."""
    if found.status is not EvalStatus.PASSED:
        return False, f"{found.status.value.replace('_', ' ')}: {found.detail}"
    if not measured:
        return True, "right; this device tells no times"
    if found.effect is None:
        return False, "right, but its time could not be measured"
    effect = found.effect
    words = f"{effect.mid:.2f}x the time ({effect.low:.2f} to {effect.high:.2f})"
    if effect.low >= NOT_FASTER:
        return True, f"takes {words}"
    return False, f"is faster: {words}" if effect.high < 1.0 else f"may be faster: {words}"


def judgement(parent: LineageState, child: LineageState, evaluation: Evaluation) -> Judgement:
    """The verdict on a simplification as it is kept; its effect is above 1 where the child is
    slower."""
    return Judgement(
        parent=parent.id,
        child=child.id,
        status=evaluation.status,
        detail=evaluation.detail,
        effect=_inverse(evaluation.speedup),
        device_name=evaluation.device_name,
        kernels=evaluation.kernels,
        seconds=evaluation.seconds,
    )


def interpretable(program: Program) -> Program:
    """The program with its first configuration alone: the interpreter cannot measure, so it could
    not choose."""
    source = KernelSource.parse(
        program.source, str(program.kernel), program.launcher or program.entry
    )
    configs = source.configs()
    if configs is None:
        return program
    return replace(
        program, source=source.edited([(configs, f"({source.segment(configs)})[:1]")]).text
    )


def _inverse(speedup: Interval | None) -> Interval | None:
    """Time of the child over that of the parent."""
    if speedup is None:
        return None
    return replace(speedup, low=1 / speedup.high, mid=1 / speedup.mid, high=1 / speedup.low)


def _state(before: LineageState, candidate: Candidate) -> LineageState:
    return LineageState(
        program=replace(before.program, source=candidate.program), steps=candidate.steps
    )


def _name(step: Step) -> str:
    return json.dumps([step.skill, step.site, step.parameters], sort_keys=True)
