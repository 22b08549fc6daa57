"""One target opened: captured by its engine, with the skills that fit and what judges its
candidates.

Both searches work on an `Opened`: the quick one (order.py) and the deeper one (deep.py). Not
covered: which candidates there are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp import phases, scratch
from kernel_lsp.config import Settings
from kernel_lsp.evaluator import Gate
from kernel_lsp.interpreter import Probe
from kernel_lsp.models import GRAPH, StoredPolicy
from kernel_lsp.pipeline import compiler
from kernel_lsp.pipeline.known import KnownWinners
from kernel_lsp.pipeline.prepare import PreparedJob
from kernel_lsp.pipeline.tournament import Tournament
from kernel_lsp.process import Confinement, Limits, StartChild
from kernel_lsp.records import Json, Progress, Report, Site, Skill, SkillMatch, Step
from kernel_lsp.rewrite.client import Capture, Engine
from kernel_lsp.skillbook import Skillbook
from kernel_lsp.snapshots import store

MAX_MATCHES = 20
"""Recalled skills that a model may choose from (daVinci-kernel's number)."""
MAX_SKILLS = 64
"""Skills that are recalled for one target. The built-in ones fit whole: words of a graph say
nothing about how many launches it takes, and so would not recall a CUDA graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobBench:
    """What a job works with: the interpreter, the device that judges, the skills as they are on
    disk now."""

    probe: Probe
    device: str
    """cuda or cpu."""
    skills: Skillbook
    target: str = GRAPH
    """The kind of what is optimized: a graph, or a Triton kernel."""
    policy: StoredPolicy | None = None
    """The trained policy that plans such a target; None: the rule does."""

    def tournament(
        self, prepared: PreparedJob, gate: Gate, settings: Settings, report: Report
    ) -> Tournament:
        """What judges the candidates of one target here."""
        return Tournament(
            prepared=prepared,
            probe=self.probe,
            device=self.device,
            settings=settings,
            judge=gate.evaluate,
            report=report,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """One target whose engine runs."""

    prepared: PreparedJob
    bench: JobBench
    gate: Gate
    engine: Engine
    capture: Capture
    matches: tuple[SkillMatch, ...]
    """Recalled skills, best first."""
    sites: tuple[Site, ...]
    """Of the recalled skills."""
    compiling: Step | None
    """torch.compile of the target; None where it does not apply."""
    known: KnownWinners
    tournament: Tournament

    def identity(self) -> Json:
        """What measurements here are of: another of any of these, and they say nothing."""
        probe = self.bench.probe
        return {
            "program": self.prepared.program,
            "workload": self.prepared.workload,
            "device": self.bench.device,
            "device_name": probe.device if self.bench.device == "cuda" else None,
            "torch": probe.torch,
            "triton": probe.triton,
        }


@asynccontextmanager
async def open_target(
    prepared: PreparedJob, bench: JobBench, gate: Gate, settings: Settings, report: Report
) -> AsyncIterator[Opened]:
    """Yields the target opened in an engine, with all that a job needs of it. Raises CaptureError,
    and EvaluationError when the engine is lost."""
    how = (
        "torch.export"
        if prepared.program.kernel is None
        else f"{prepared.program.launcher}'s launches"
    )
    report(Progress(phase="capture", message=f"reading {prepared.target.qualname} with {how}"))
    gate.warm(bench.probe.python)
    tournament = bench.tournament(prepared, gate, settings, report)
    async with (
        gate.forks() as start,
        _expecting(tournament, gate) as give_up,
        engine_of(prepared, bench, settings, start) as engine,
    ):
        executable = [skill for skill in bench.skills.skills if skill.executable]
        with phases.phase("capture"):
            capture = await engine.open(
                prepared.program, prepared.workload, bench.device, executable, gpu=bench.probe.gpu
            )
        matches = bench.skills.select(capture.words, limit=MAX_SKILLS)
        if not any(_may_be_timed(site, bench.device) for site in capture.sites):
            give_up()
        compiling = compiler.step(capture.sites) if settings.torch_compile else None
        yield Opened(
            prepared=prepared,
            bench=bench,
            gate=gate,
            engine=engine,
            capture=capture,
            matches=matches,
            sites=_recall_sites(compiler.others(capture.sites, settings), matches, executable),
            compiling=compiling,
            known=KnownWinners(Path(settings.data_dir), bench.probe, bench.device),
            tournament=tournament,
        )


@asynccontextmanager
async def _expecting(tournament: Tournament, gate: Gate) -> AsyncIterator[Callable[[], None]]:
    """Where somebody waits, reference and baselines are made ready while the target is still
    captured: torch.compile takes longer than everything else. In the background nothing is made on
    suspicion."""
    if tournament.prepared.job.background:
        yield lambda: None
        return
    async with gate.expecting(tournament.expected()) as give_up:
        yield give_up


def _may_be_timed(site: Site, device: str) -> bool:
    """Whether a candidate may come of it whose speed this device can tell."""
    return (device == "cuda" or site.plain) and all(proof.holds for proof in site.proofs)


@asynccontextmanager
async def engine_of(
    prepared: PreparedJob, bench: JobBench, settings: Settings, start: StartChild
) -> AsyncIterator[Engine]:
    """The user's definitions run in the engine (on fake tensors), so it is confined too."""
    with scratch.folder("engine") as folder:
        # They may lie under /tmp.
        folders = {Path(skill.path).parent for skill in bench.skills.skills}
        if prepared.program.home is not None:
            folders.update(store.folders_of(prepared.program.home))
        confinement = Confinement(
            scratch=folder,
            readable=tuple(sorted(folders)),
            overlaid=store.overlaid_by(prepared.program.home),
        )
        engine = Engine(
            python=bench.probe.python,
            limits=Limits(memory_bytes=settings.memory_mb * 2**20),
            confinement=confinement,
            open_seconds=settings.capture_timeout_s,
            start=start,
        )
        try:
            yield engine
        finally:
            await engine.close()


def _recall_sites(
    sites: Sequence[Site], matches: Sequence[SkillMatch], skills: Sequence[Skill]
) -> tuple[Site, ...]:
    """Sites of the recalled skills. A library that fits into the limit is recalled whole."""
    names = (
        {match.skill for match in matches} if len(skills) > MAX_SKILLS else {s.name for s in skills}
    )
    return tuple(site for site in sites if site.skill in names)
