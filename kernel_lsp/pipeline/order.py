"""A job from text to outcome: which stage comes next, and what is remembered."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path

from kernel_lsp import __version__, interpreter, phases, skillbook
from kernel_lsp.agents.learned import LearnedPlanner
from kernel_lsp.agents.plan import RankedPlan, rank_sites
from kernel_lsp.cache import Cache
from kernel_lsp.config import Settings
from kernel_lsp.errors import CaptureError, EvaluationError, KernelLspError
from kernel_lsp.evaluator import COMPILED, Gate
from kernel_lsp.evaluator.remote.link import Link
from kernel_lsp.evaluator.remote.remote_gate import RemoteGate, judged_by
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, SharingRules
from kernel_lsp.library.usage import skill_of
from kernel_lsp.models import GRAPH, KERNEL
from kernel_lsp.models.store import FOLDER as MODELS
from kernel_lsp.pipeline import parts, places, recipes, silence, turns
from kernel_lsp.pipeline.opened import MAX_MATCHES, JobBench, Opened, open_target
from kernel_lsp.pipeline.policies import Policies
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.pipeline.search import TargetSearch
from kernel_lsp.pipeline.turns import TakeTurn
from kernel_lsp.records import (
    Job,
    Offered,
    Outcome,
    Progress,
    Proposal,
    Report,
    SearchBudget,
    SearchMode,
    SearchPlan,
    Verdict,
    rank,
)
from kernel_lsp.rewrite.client import Capture
from kernel_lsp.skillbook import Skillbook

MODEL_ALONE = (SearchMode.BEST, SearchMode.TURNS)
"""Without seeds, so that results compare with published systems."""
FEW_TURNS = SearchPlan(
    mode=SearchMode.TURNS, budget=SearchBudget(candidates=3, seconds=60.0, stagnation=3)
)
"""What a language model gets in a quick job: one short rollout."""
MAX_OFFERED = 24
"""Sites that an outcome tells of: a prompt shows no more."""
SEARCHES = "searches"
"""In the user's data folder: archives of searches."""


class Pipeline:
    """One user's settings, cache and warm gates. Jobs may run one after another, all in one event
    loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cache = Cache(Path(settings.data_dir) / "cache")
        self.policies = Policies(Path(settings.data_dir))
        self._gates: dict[SharingRules, Gate] = {}
        self._probing = asyncio.Lock()
        self._link: Link | None = None
        """To the machine that judges, where that is another one."""

    async def close(self) -> None:
        """End what is still warm; a later job would start cold."""
        await self.policies.close()
        await asyncio.gather(*(gate.close() for gate in self._gates.values()))
        if self._link is not None:
            await self._link.close()

    def gate(self, *, background: bool = False) -> Gate:
        """The gate for work that somebody waits for, or for work in the background."""
        rules = SharingRules.of(self.settings, background=background)
        judge_on = self.settings.judge_on
        if judge_on is not None and self._link is None:
            self._link = Link(judge_on, wait_s=self.settings.gpu_wait_s)
        if rules not in self._gates:
            make = Gate if self._link is None else functools.partial(RemoteGate, self._link)
            self._gates[rules] = make(
                device_sharing=DeviceSharing(rules),
                cache=Path(self.settings.data_dir) / COMPILED,
                readable=self._readable(),
            )
        return self._gates[rules]

    def _readable(self) -> tuple[Path, ...]:
        """What children of every job may be given to read, whatever its folder: skills and
        policies."""
        data_dir = Path(self.settings.data_dir)
        places = skillbook.folders(self.settings.skill_folders, workspace=None, data_dir=data_dir)
        found = (
            *(place.path for place in places if place.source != "workspace"),
            data_dir / MODELS,
        )
        return tuple(path for path in found if path.is_absolute())

    async def optimize(
        self, job: Job, report: Report = lambda progress: None, turn: TakeTurn = turns.free
    ) -> Outcome:
        """The main job: every candidate for one target, judged, best first.

        An Outcome without a winner says why in ``note``. With a plan for a deeper search that
        follows (or stands alone, for a model alone) and goes on where its archive ends. Raises
        KernelLspError when something of ours broke. Cancelling the task ends every child within
        half a second."""
        prepared = prepare(job, self.settings.data_dir)
        if isinstance(prepared, Outcome):
            return prepared
        gate = self.gate(background=job.background)
        if not self.cache.about(_subject(prepared)):
            gate.warm(self._python(job))  # torch is imported there while the probe imports its own
        bench = await self._bench(prepared)
        plan = self._plan(prepared, bench)
        known = self._recalled(prepared, bench)
        if known and job.search is None:
            return _place_lines(replace(known, cached=True), prepared)
        outcome = known or self._recalled(prepared, bench, model=False)
        if outcome and plan is None:
            return _place_lines(replace(outcome, cached=True), prepared)
        self.policies.warm(bench, gate)
        try:
            return _place_lines(
                await self._searched(prepared, bench, gate, plan, outcome, report, turn), prepared
            )
        except CaptureError as error:
            whole = places.locate_error(error, prepared)
            if not parts.may_have_parts(prepared):
                raise whole from error

        async def search_part(part: PreparedJob) -> Outcome:
            known = self._recalled(part, bench)
            if known is not None and job.search is None:
                return replace(known, cached=True)
            return await self._searched(part, bench, gate, plan, None, report, turn)

        found = await parts.outcome_of_parts(
            prepared, bench, gate, self.settings, report, whole, search_part
        )
        if found.proposals:
            self._keep(prepared, bench, found, model=False)
        return _place_lines(found, prepared)

    async def _searched(
        self,
        prepared: PreparedJob,
        bench: JobBench,
        gate: Gate,
        plan: SearchPlan | None,
        outcome: Outcome | None,
        report: Report,
        turn: TakeTurn,
    ) -> Outcome:
        """``outcome``: what the quick search found before. Raises CaptureError."""
        job = prepared.job
        async with contextlib.AsyncExitStack() as stack:
            async with turn():
                working = open_target(prepared, bench, gate, self.settings, report)
                one = await stack.enter_async_context(working)
                if outcome is None and not _asks_model_alone(job.search):
                    outcome = await self._quick(one, report)
                    self._keep(prepared, bench, outcome, model=False)
            if plan is not None:
                outcome = await self._deeper(one, plan, outcome, report, turn)
                # A model that failed is asked again next time.
                if job.search or (outcome.search and not outcome.search.notes):
                    self._keep(prepared, bench, outcome)
        assert outcome is not None
        return outcome

    def _plan(self, prepared: PreparedJob, bench: JobBench) -> SearchPlan | None:
        """What is searched beyond the quick search. In the background no model is asked for it."""
        job = prepared.job
        if job.search is not None or job.background or self.settings.policy == "plan":
            return job.search
        folder = Path(self.settings.data_dir) / SEARCHES
        few = min(FEW_TURNS.budget.candidates, self.settings.search_turns)
        plan = replace(FEW_TURNS, budget=replace(FEW_TURNS.budget, candidates=few))
        return replace(plan, archive=str(folder / f"turns-{self._key(prepared, bench)}.db"))

    async def _deeper(
        self, one: Opened, plan: SearchPlan, quick: Outcome | None, report: Report, turn: TakeTurn
    ) -> Outcome:
        """The quick outcome with what a deeper search has found, best first."""
        # Archives and models: not for a job that needs neither.
        from kernel_lsp.pipeline import deep

        seeds = quick.proposals if quick and not _asks_model_alone(plan) else ()
        try:
            found, summary = await deep.run(one, plan, seeds, self.settings, report, turn)
        except KernelLspError as error:
            if one.prepared.job.search is not None or quick is None:
                raise
            # Nobody asked for more than the quick one.
            report(Progress(phase="search", message=str(error)))
            return quick
        if quick is None and not found:
            # No model could be asked: better the quick search than nothing.
            async with turn():
                quick = await self._quick(one, report)
        every = _ranked((*quick.proposals, *found) if quick else found)
        return replace(await _outcome(one, every), search=summary)

    def _keep(
        self, prepared: PreparedJob, bench: JobBench, outcome: Outcome, *, model: bool = True
    ) -> None:
        """``model``: as what is known with the model of the settings, where one is set. What a
        busy machine left open is judged again when it is asked for again."""
        unknown = any(proposal.verdict is Verdict.UNKNOWN for proposal in outcome.proposals)
        disturbed = any(proposal.evaluation.disturbed for proposal in outcome.proposals)
        if not unknown and not disturbed and not outcome.cut_short:
            self.cache.put(self._key(prepared, bench, model=model), outcome)

    def _recalled(
        self, prepared: PreparedJob, bench: JobBench, *, model: bool = True
    ) -> Outcome | None:
        """Proposals alone: what a search has cost was reported when it ended."""
        outcome = self.cache.get(self._key(prepared, bench, model=model))
        return replace(outcome, search=None) if outcome else None

    @contextlib.asynccontextmanager
    async def opened(
        self, job: Job, report: Report = lambda progress: None
    ) -> AsyncIterator[Opened]:
        """One target for work that is no job: a skill's verification. Raises KernelLspError."""
        prepared = prepare(job, self.settings.data_dir)
        if isinstance(prepared, Outcome):
            raise CaptureError(prepared.note or "there is nothing to open")
        async with open_target(
            prepared, await self._bench(prepared), self.gate(), self.settings, report
        ) as one:
            yield one

    async def prompts(self, job: Job, report: Report = lambda progress: None) -> str:
        """What a language model would be sent about the job's target, as Markdown; nothing is sent.

        The target is captured for that, so code of its file runs. Raises KernelLspError.
        """
        from kernel_lsp.pipeline import showing

        prepared = prepare(job, self.settings.data_dir)
        if isinstance(prepared, Outcome):
            raise EvaluationError(f"nothing would be sent about {job.qualname}: {prepared.note}")
        bench, gate = await self._bench(prepared), self.gate(background=job.background)
        async with open_target(prepared, bench, gate, self.settings, report) as one:
            return await showing.prompts_of(one, self.settings)

    async def cached(self, job: Job) -> Outcome | None:
        """What is already known about a job; runs nothing but (once) the interpreter's version
        probe. Another machine that judges is not asked for it: verdicts count for its device."""
        prepared = prepare(job, self.settings.data_dir)
        unasked = self.settings.judge_on is not None and (
            self._link is None or self._link.about is None
        )
        if isinstance(prepared, Outcome) or unasked:
            return None
        bench = await self._bench(prepared)
        known = self._recalled(prepared, bench) or self._recalled(prepared, bench, model=False)
        return _place_lines(replace(known, cached=True), prepared) if known else None

    def _key(self, prepared: PreparedJob, bench: JobBench, *, model: bool = True) -> str:
        asked = model and self.settings.policy != "plan"
        rest = Cache.key(
            version=__version__,
            probe=bench.probe,
            device=bench.device,
            skills=bench.skills.digest,
            budget=prepared.job.budget,
            threshold=self.settings.threshold,
            policy=self.settings.policy if asked else "plan",
            model=self.settings.model if asked else None,
            planner=bench.policy.proposer if bench.policy else None,
        )
        return f"{_subject(prepared)}-{rest}"

    async def _bench(self, prepared: PreparedJob) -> JobBench:
        job, home = prepared.job, prepared.program.home
        if home is not None and home.device == "cpu":
            if job.device == "cuda":
                cause = f"{job.qualname} was recorded on the CPU"
                raise EvaluationError(
                    cause, "record the program as it runs on the GPU, or say --device cpu"
                )
            job = replace(job, device="cpu")  # judged where it runs
        return await self.bench(job, GRAPH if prepared.program.kernel is None else KERNEL)

    async def bench(self, job: Job, target: str = GRAPH) -> JobBench:
        """What a job would work with, for a kind of target. Raises EvaluationError when there is no
        interpreter with torch, or no such device."""
        with phases.phase("probe"):
            async with self._probing:  # of jobs side by side the first asks, the others read
                probe = await interpreter.probe(self._python(job), Path(self.settings.data_dir))
        if probe.remedy:
            raise EvaluationError("nothing can be measured here", probe.remedy)
        there = await self.gate(background=job.background).elsewhere()
        if there is not None:
            probe = judged_by(probe, there)
        if job.device == "cuda" and not probe.cuda:
            cause = f"torch in {probe.python} sees no CUDA device"
            raise EvaluationError(
                cause, "set the device to auto or cpu, or install a torch that sees it"
            )
        device = "cuda" if probe.cuda and job.device != "cpu" else "cpu"
        return JobBench(
            probe=probe,
            device=device,
            skills=self._library(job.folder),
            target=target,
            policy=self.policies.used(
                device, target, probe.capability if device == "cuda" else None
            ),
        )

    def _python(self, job: Job) -> str:
        return interpreter.find(job.folder, self.settings.python).path

    def _library(self, folder: str | None) -> Skillbook:
        """Read anew for each job (11 ms after the first time), so that an edited skill counts at
        once."""
        places = skillbook.folders(
            self.settings.skill_folders,
            workspace=Path(folder) if folder else None,
            data_dir=Path(self.settings.data_dir),
        )
        return skillbook.load(places, data_dir=Path(self.settings.data_dir))

    async def _quick(self, one: Opened, report: Report) -> Outcome:
        job, device, gate = one.prepared.job, one.bench.device, one.gate
        planner = self.policies.planner(one, report)
        planned = planner.ranked_plans(one.sites, triton=one.bench.probe.triton is not None)
        planned = recipes.ranked_plans(one, planned)
        search = TargetSearch(
            tournament=one.tournament,
            engine=one.engine,
            known=one.known,
            tuner=lambda request: gate.tuner(request, report),
            device=device,
            budget=job.budget,
            compiling=one.compiling,
            again=planner.again if isinstance(planner, LearnedPlanner) else None,
        )
        ranked = await search.run(_shortlist(planned, device, one.capture, budget=job.budget))
        for problem in one.known.notes:
            report(Progress(phase="tune", message=problem))
        if any(map(skill_of, ranked)):
            from kernel_lsp.pipeline import learning  # summaries and drafts: few jobs need them

            learning.count_usage(ranked, one, self.settings, report)
        return await _outcome(one, ranked)


def _subject(prepared: PreparedJob) -> str:
    """What is judged, without what only the interpreter can say: the first part of the key of a
    verdict."""
    fingerprint, program = prepared.target.fingerprint, prepared.program
    return Cache.key(fingerprint=fingerprint, program=program, workload=prepared.workload)


def _place_lines(outcome: Outcome, prepared: PreparedJob) -> Outcome:
    """With lines of the file as it is now: what is remembered counts them in the program."""
    if prepared.program.home is not None:  # its program is the file
        return outcome
    misses = places.place_misses(outcome.misses, prepared.program.source, prepared.snapshot.text)
    return replace(outcome, misses=misses)


def _asks_model_alone(plan: SearchPlan | None) -> bool:
    return plan is not None and plan.mode in MODEL_ALONE


def _ranked(proposals: Iterable[Proposal]) -> tuple[Proposal, ...]:
    """Best first, the last of those with one id."""
    by_id = {proposal.id: proposal for proposal in proposals}
    return tuple(sorted(by_id.values(), key=rank))


async def _outcome(one: Opened, ranked: tuple[Proposal, ...]) -> Outcome:
    inputs = tuple(
        replace(spec, name=None) for spec in one.capture.inputs if spec.shape is not None
    )
    why = await silence.explain(one, ranked)
    return Outcome(
        qualname=one.prepared.target.qualname,
        proposals=tuple(replace(proposal, inputs=inputs) for proposal in ranked),
        matches=one.matches,
        note=await silence.note(one, ranked),
        misses=why.misses,
        roof=why.roof,
        read_bytes=one.capture.read_bytes,
        written_bytes=one.capture.written_bytes,
        offered=offered_by(one),
    )


def offered_by(one: Opened) -> Offered:
    """What proposers could choose from, as a language model alone reads it (deep.task_of)."""
    sites = [site for site in one.sites if all(proof.holds for proof in site.proofs)]
    return Offered(
        fingerprint=one.prepared.target.fingerprint,
        device=one.bench.device,
        device_name=one.bench.probe.device,
        triton=one.bench.device == "cuda" and one.bench.probe.triton is not None,
        sites=tuple(replace(s, proofs=()) for s in rank_sites(sites)[:MAX_OFFERED]),
        skills=tuple(match.skill for match in one.matches[:MAX_MATCHES]),
        words=tuple(one.capture.words),
        inputs=one.capture.inputs,
        read_bytes=one.capture.read_bytes,
        written_bytes=one.capture.written_bytes,
    )


async def _shortlist(
    ranked_plans: AsyncIterator[RankedPlan], device: str, capture: Capture, *, budget: int
) -> AsyncIterator[RankedPlan]:
    """Within the budget. Without a GPU, plain PyTorch first and one Triton candidate at most:
    the interpreter can show that a kernel is right, but never that it is fast."""
    plain, triton = 0, list[RankedPlan]()
    async for ranked_plan in ranked_plans:
        if device == "cuda" or not ranked_plan.candidate.uses_triton:
            plain += 1
            yield ranked_plan
        elif not triton and not silence.too_large(capture):
            triton.append(ranked_plan)
        if plain + len(triton) >= budget:
            break
    for ranked_plan in triton:
        yield ranked_plan
