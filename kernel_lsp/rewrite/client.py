"""The parent's face of the engine process. Standard library only; asyncio; no torch.

    engine = Engine(python=interpreter, confinement=…)
    capture = await engine.open(program, workload, device, skills)
    candidate, left = await engine.propose([Step(skill=…, site=…)])
    await engine.close()

One engine holds one program. `open` may be called again; a dead engine is started afresh, with its
program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp import errors, phases, process, wire
from kernel_lsp.process import StartChild
from kernel_lsp.records import (
    ArgSpec,
    Break,
    Candidate,
    Explained,
    GraphView,
    KernelView,
    Part,
    Program,
    Site,
    Skill,
    Step,
    Viewed,
    Workload,
)

OPEN_SECONDS = (
    120.0  # importing torch took 4 s and exporting a 200-layer model 20 s on two busy cores
)
PROPOSE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """What the engine saw in a program."""

    words: tuple[str, ...]
    """Operations and facts, for the query that recalls skills."""
    sites: tuple[Site, ...]
    """Places where a skill applies and all its preconditions are proved."""
    inputs: tuple[ArgSpec, ...]
    """What the target was really called with."""
    notes: tuple[str, ...] = ()
    """What a person may want to know, e.g. a skill that failed to load."""
    read_bytes: int | None = None
    """Inputs, parameters and buffers that the graph reads, each once."""
    written_bytes: int | None = None
    """Results."""
    graph: GraphView | None = None
    """For a model that reads no source text; None: this engine does not tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposed:
    candidate: Candidate
    sites_left: tuple[Site, ...]
    """Places where another step could follow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPart:
    """Statements that can be one graph."""

    part: Part
    operations: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Surveyed:
    """A module that cannot be one graph as a whole."""

    breaks: tuple[Break, ...]
    parts: tuple[FoundPart, ...]
    """What can be, the largest first."""


class Engine:
    """A confined child that captures and rewrites; start it lazily, always `close` it."""

    def __init__(
        self,
        *,
        python: str,
        limits: process.Limits,
        confinement: process.Confinement | None,
        open_seconds: float = OPEN_SECONDS,
        start: StartChild = process.start,
    ) -> None:
        """``start``: how its process comes to be; a fork of a warm one saves the imports (3 s)."""
        self._python, self._limits, self._confinement = python, limits, confinement
        self._open_seconds, self._start = open_seconds, start
        self._child: process.Child | None = None
        self._opened: dict[str, object] | None = None
        """What a fresh process has to open again."""

    async def open(
        self,
        program: Program,
        workload: Workload,
        device: str,
        skills: Sequence[Skill],
        *,
        gpu: tuple[str | None, str | None] = (None, None),
    ) -> Capture:
        """Capture a program. Raises CaptureError, also when the user's code kills the engine or
        hangs.

        ``gpu``: capability and name of the GPU that costs are estimated for, as far as known
        (`Probe.gpu`)."""
        request = {
            "op": "open",
            "program": program,
            "workload": workload,
            "device": device,
            "skills": list(skills),
            "gpu": gpu,
        }
        self._opened = None
        try:
            capture = wire.from_json(Capture, await self._ask(request, self._open_seconds))
            self._opened = request
            return capture
        except errors.WorkerLost as lost:
            remedy = "look for an endless loop or a crash in the constructor or get_inputs()"
            raise errors.CaptureError(
                f"the program could not be read: {lost.cause}", remedy
            ) from lost

    async def survey(self, program: Program, workload: Workload, device: str) -> Surveyed:
        """Says where a recorded module breaks, and which of its parts do not; runs the recorded
        call on the CPU.

        Raises CaptureError, also when the user's code kills the engine or hangs."""
        request = {"op": "survey", "program": program, "workload": workload, "device": device}
        try:
            return wire.from_json(Surveyed, await self._ask(request, self._open_seconds))
        except errors.WorkerLost as lost:
            raise errors.CaptureError(f"its parts could not be looked for: {lost.cause}") from lost

    async def propose(self, steps: Sequence[Step]) -> tuple[Candidate, tuple[Site, ...]]:
        """Apply steps in order to a fresh copy of the graph; also returns the sites that remain.

        A step may name a site that an earlier step made. Raises RewriteError when a site is gone,
        a precondition does not hold or the result would not compile.
        """
        answer = await self._ask({"op": "propose", "steps": list(steps)}, PROPOSE_SECONDS)
        proposed = wire.from_json(Proposed, answer)
        return proposed.candidate, proposed.sites_left

    async def look(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        """The sites that remain after these steps; nothing is made of them. Raises RewriteError."""
        return wire.from_json(tuple[Site, ...], await self._after(steps, "look"))

    async def view(self, steps: Sequence[Step]) -> Viewed:
        """The sites that are left after these steps, like :meth:`look`, with the graph as they
        leave it. Raises RewriteError."""
        return wire.from_json(Viewed, await self._after(steps, "view"))

    async def launched(self, steps: Sequence[Step]) -> KernelView:
        """A Triton kernel and its launch after these steps. Raises RewriteError, also for a
        graph."""
        return wire.from_json(KernelView, await self._after(steps, "launched"))

    async def weigh(self, steps: Sequence[Step]) -> float:
        """Estimated seconds of a call after these steps, without what they wrap around it; for a
        CUDA device and a graph only, to be compared with each other. Raises RewriteError."""
        return wire.from_json(float, await self._after(steps, "weigh"))

    async def make(self, steps: Sequence[Step]) -> Candidate:
        """The candidate of these steps, like :meth:`propose` for one who wants no further step.
        Raises RewriteError."""
        return wire.from_json(Candidate, await self._after(steps, "make"))

    async def variants(self, steps: Sequence[Step], at: int, limit: int) -> tuple[Candidate, ...]:
        """The same steps with other parameters at place ``at``, the given ones first, at most
        ``limit``.

        For a comparison: what wins is made again by :meth:`propose`. Raises RewriteError.
        """
        request = {"op": "variants", "steps": list(steps), "at": at, "limit": limit}
        return wire.from_json(tuple[Candidate, ...], await self._ask(request, PROPOSE_SECONDS))

    async def explain(self) -> Explained:
        """Why not more is offered; lines are those of the program."""
        return wire.from_json(Explained, await self._ask({"op": "explain"}, PROPOSE_SECONDS))

    async def close(self) -> None:
        """End the engine. Safe to call twice."""
        if self._child is not None:
            await self._child.kill()
            self._child = None

    async def _after(self, steps: Sequence[Step], op: str) -> object:
        """The engine's answer to a question about the program after these steps."""
        return await self._ask({"op": op, "steps": list(steps)}, PROPOSE_SECONDS)

    async def _ask(self, request: dict[str, object], seconds: float) -> object:
        if self._child is None or not self._child.alive:
            await self.close()
            with phases.phase("engine.start"):
                self._child = await self._start(
                    "kernel_lsp.rewrite.engine",
                    python=self._python,
                    limits=self._limits,
                    confinement=self._confinement,
                )
            if self._opened is not None:
                await self._answer(self._child, self._opened, self._open_seconds)
        return await self._answer(self._child, request, seconds)

    async def _answer(
        self, child: process.Child, request: dict[str, object], seconds: float
    ) -> object:
        with phases.phase(f"engine.{request['op']}"):
            answer, _ = await child.ask(wire.to_json(request), timeout_s=seconds)
        if (failure := answer.get("error")) is not None:
            raise getattr(errors, failure["kind"])(failure["cause"], failure["remedy"])
        return answer["result"]
