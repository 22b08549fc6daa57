"""A job from text to outcome: which stage comes next, and what is remembered."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kernel_lsp import __version__, interpreter, phases, skillbook
from kernel_lsp.agents import plan
from kernel_lsp.agents.plan import Course
from kernel_lsp.cache import Cache
from kernel_lsp.config import Settings
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import Gate
from kernel_lsp.evaluator.sharing.manners import Manners, Rules
from kernel_lsp.interpreter import Probe
from kernel_lsp.pipeline.known import Known
from kernel_lsp.pipeline.prepare import Prepared, prepare
from kernel_lsp.pipeline.search import Search
from kernel_lsp.pipeline.tournament import Tournament
from kernel_lsp.process import Confinement, Limits
from kernel_lsp.records import Evaluation, Job, Outcome, Progress, Proposal, Site, Skill, SkillMatch, Verdict
from kernel_lsp.rewrite.client import Capture, Engine, Start
from kernel_lsp.skillbook import Skillbook

Report = Callable[[Progress], None]
MAX_SKILLS = 64
"""Skills that are recalled for one target. The built-in ones fit whole: words of a graph say nothing about
how many launches it takes, and so would not recall a CUDA graph."""

MAX_INTERPRETED = 2**20
"""Input elements up to which a kernel is checked in Triton's interpreter, which is about 200x slower than
torch: eight trials of 8 million elements took more than two minutes on two cores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What a job works with: the interpreter, the device that judges, the skills as they are on disk now."""

    probe: Probe
    device: str
    """cuda or cpu."""
    skills: Skillbook


class Pipeline:
    """One user's settings, cache and warm gates. Jobs may run one after another, all in one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cache = Cache(Path(settings.data_dir) / "cache")
        self._gates: dict[Rules, Gate] = {}

    async def close(self) -> None:
        """End what is still warm; a later job would start cold."""
        await asyncio.gather(*(gate.close() for gate in self._gates.values()))

    def gate(self, *, background: bool = False) -> Gate:
        """The gate for work that somebody waits for, or for work in the background."""
        rules = Rules.of(self.settings, background=background)
        if rules not in self._gates:
            compiled = Path(self.settings.data_dir) / "compiled"
            self._gates[rules] = Gate(manners=Manners(rules), cache=compiled)
        return self._gates[rules]

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

    async def _bench(self, job: Job) -> Bench:
        """Raises EvaluationError when there is no interpreter with torch, or no such device."""
        with phases.phase("probe"):
            probe = await interpreter.probe(interpreter.find(job.folder, self.settings.python).path)
        if probe.remedy:
            raise EvaluationError("nothing can be measured here", probe.remedy)
        if job.device == "cuda" and not probe.cuda:
            raise EvaluationError(f"torch in {probe.python} sees no CUDA device", "use --device cpu or auto")
        device = "cuda" if probe.cuda and job.device != "cpu" else "cpu"
        return Bench(probe=probe, device=device, skills=self._library(job.folder))

    def _library(self, folder: str | None) -> Skillbook:
        """Read anew for each job (15 skills take 26 ms), so that an edited skill counts at once."""
        places = skillbook.folders(
            self.settings.skill_folders,
            workspace=Path(folder) if folder else None,
            data_dir=Path(self.settings.data_dir),
        )
        return skillbook.load(places)

    async def _run(self, prepared: Prepared, bench: Bench, report: Report) -> Outcome:
        qualname = prepared.target.qualname
        gate = self.gate(background=prepared.job.background)
        report(Progress(phase="capture", message=f"reading {qualname} with torch.export"))
        gate.warm(bench.probe.python)  # torch is imported there while the engine imports its own
        async with gate.forks() as start, self._engine(bench, start) as engine:
            executable = [skill for skill in bench.skills.skills if skill.executable]
            with phases.phase("capture"):
                capture = await engine.open(prepared.program, prepared.workload, bench.device, executable)
            matches = bench.skills.select(capture.words, limit=MAX_SKILLS)
            sites = _recalled(capture.sites, matches, executable)
            known = Known(Path(self.settings.data_dir), bench.probe, bench.device)
            planner = plan.Planner(engine.make, engine.look, known.best)
            planned = planner.courses(sites, triton=bench.probe.triton is not None)
            courses = _shortlist(planned, bench.device, capture, budget=prepared.job.budget)
            tournament = Tournament(
                prepared=prepared,
                probe=bench.probe,
                device=bench.device,
                settings=self.settings,
                judge=gate.evaluate,
                report=report,
            )
            search = Search(
                tournament=tournament,
                engine=engine,
                known=known,
                tuner=lambda request: gate.tuner(request, report),
                device=bench.device,
                budget=prepared.job.budget,
            )
            ranked = await search.run(courses)
        for problem in known.notes:
            report(Progress(phase="tune", message=problem))
        note = _note(capture, ranked, bench.device)
        return Outcome(
            qualname=qualname,
            proposals=ranked,
            matches=matches,
            note=note,
            read_bytes=capture.read_bytes,
            written_bytes=capture.written_bytes,
        )

    @asynccontextmanager
    async def _engine(self, bench: Bench, start: Start) -> AsyncIterator[Engine]:
        """The user's definitions run in the engine (on fake tensors), so it is confined too."""
        with tempfile.TemporaryDirectory(prefix="kernel-lsp-engine-") as scratch:
            folders = {Path(skill.path).parent for skill in bench.skills.skills}  # they may lie under /tmp
            confinement = Confinement(scratch=Path(scratch), readable=tuple(sorted(folders)))
            limits = Limits(memory_bytes=self.settings.memory_mb * 2**20)
            engine = Engine(
                python=bench.probe.python,
                limits=limits,
                confinement=confinement,
                open_seconds=self.settings.capture_timeout_s,
                start=start,
            )
            try:
                yield engine
            finally:
                await engine.close()


def _recalled(sites: Sequence[Site], matches: Sequence[SkillMatch], skills: Sequence[Skill]) -> list[Site]:
    """Sites of the recalled skills. A library that fits into the limit is recalled whole."""
    names = {match.skill for match in matches} if len(skills) > MAX_SKILLS else {s.name for s in skills}
    return [site for site in sites if site.skill in names]


async def _shortlist(
    courses: AsyncIterator[Course], device: str, capture: Capture, *, budget: int
) -> AsyncIterator[Course]:
    """Within the budget. Without a GPU, plain PyTorch first and one Triton candidate at most:
    the interpreter can show that a kernel is right, but never that it is fast."""
    plain, triton = 0, list[Course]()
    async for course in courses:
        if device == "cuda" or not course.candidate.uses_triton:
            plain += 1
            yield course
        elif not triton and not _too_large(capture):
            triton.append(course)
        if plain + len(triton) >= budget:
            break
    for course in triton:
        yield course


def _too_large(capture: Capture) -> bool:
    return sum(math.prod(spec.shape) for spec in capture.inputs if spec.shape) > MAX_INTERPRETED


def _note(capture: Capture, ranked: Sequence[Proposal], device: str) -> str | None:
    """Why nothing is offered; None when something is."""
    if not capture.sites:
        return "no skill applies to this program"
    if not ranked:
        return _nothing_to_judge(capture)
    best = ranked[0]
    if best.verdict is Verdict.FASTER:
        return None
    if best.verdict is not Verdict.CORRECT:
        return f"no rewrite passed: {best.evaluation.detail or best.evaluation.status.value}"
    if (speedup := best.evaluation.speedup) is None:
        return f"a rewrite is right, but {_untimed(best.evaluation)}"
    between = f"{speedup.low:.2f}x to {speedup.high:.2f}x"
    return f"the best rewrite is right but not surely faster on {device}: {between}"


def _untimed(evaluation: Evaluation) -> str:
    """Why nothing is known of a right rewrite's speed."""
    dull = next((c.detail for c in evaluation.checks if c.name == "degenerate" and c.passed is False), "")
    if dull:
        return f"the program computes a constant, or nothing: {dull}"
    if evaluation.device == "cuda":
        return "it was not timed"
    return f"its speed is unknown without a GPU (judged by {evaluation.device})"


def _nothing_to_judge(capture: Capture) -> str:
    unproved = (f"{p.claim} ({p.because})" for site in capture.sites for p in site.proofs if not p.holds)
    if any(all(p.holds for p in site.proofs) and not site.plain for site in capture.sites):
        return (
            "a fused Triton kernel applies, but this workload is too large to check it in Triton's"
            f" interpreter (more than {MAX_INTERPRETED:,} input elements): run where there is a GPU"
        )
    return f"nothing could be proved safe to rewrite: {next(unproved, 'every rewrite failed')}"
