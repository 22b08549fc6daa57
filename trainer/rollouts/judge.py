"""One device judges candidates: in the trainer's own process, or as a worker on a cluster's node.

A candidate is made of a task's program by the product's engine, and judged in full by the
product's gate. Not covered: which steps are tried (worlds.py), who is asked (judging.py)."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernel_lsp import config, interpreter, process, skillbook, wire
from kernel_lsp.config import Settings
from kernel_lsp.errors import CaptureError, EvaluationError, RewriteError
from kernel_lsp.evaluator import Gate
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, SharingRules
from kernel_lsp.records import Candidate, Step
from kernel_lsp.rewrite.client import Engine
from trainer.data.reading import outcome_of
from trainer.records import TurnOutcome, TurnStatus
from trainer.tasks import task_suites

MAX_OPEN = 4
"""Tasks whose engine stays: each takes half a gigabyte, and five seconds to open again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One candidate to judge."""

    task: str
    steps: tuple[Step, ...] = ()
    """For a table, and for who makes the candidate of them."""
    request: EvaluationRequest | None = None
    """A candidate that is made already."""
    program: str | None = None
    """The task's file, which a live pool adds."""

    @property
    def id(self) -> str:
        """A hash of all that decides the verdict."""
        text = wire.dumps([self.task, self.steps, self.request, self.program])
        return hashlib.sha256(text.encode()).hexdigest()[:24]


class DeviceJudge:
    """One device, in this process: a cluster's worker too. Several cases may be under way."""

    def __init__(self, device: str, timeout_s: float = 300.0) -> None:
        """``device``: cuda or cpu. ``timeout_s``: of one evaluation. Caches are those of this
        machine."""
        self._device, self._timeout_s = device, timeout_s
        self._settings = config.load(None)[0]
        self._python = interpreter.find(None, self._settings.python).path
        compiled = Path(self._settings.data_dir) / "compiled"
        self._gate = Gate(
            device_sharing=DeviceSharing(SharingRules.of(self._settings)), cache=compiled
        )
        self._open: dict[str, _Open] = {}
        """By program; the one used last is the last."""

    async def do(self, work: Case) -> TurnOutcome:
        """Judges one case on this device."""
        try:
            request = work.request or await self._made(work)
            if request is None:
                return TurnOutcome(
                    status=TurnStatus.REFUSED, complaint="the reply made no candidate"
                )
            found = await self._gate.evaluate(replace(request, python=self._python))
            full = request.budget.compile_s > 0
            return outcome_of(found, full, request.uses_triton)
        except RewriteError as error:
            return TurnOutcome(status=TurnStatus.REFUSED, complaint=str(error))
        except (CaptureError, EvaluationError) as error:
            return TurnOutcome(status=TurnStatus.NOT_RUN, complaint=str(error))

    async def close(self) -> None:
        """Ends the engines and the gate."""
        await asyncio.gather(*(one.close() for one in self._open.values()))
        self._open.clear()
        await self._gate.close()

    async def _made(self, case: Case) -> EvaluationRequest | None:
        """By the engine, with proofs. Raises RewriteError, and CaptureError when it cannot read
        the task."""
        if not case.program or not case.steps:
            return None
        one = self._open.pop(case.program, None) or _Open(
            case, self._python, self._device, self._settings
        )
        self._open[case.program] = one
        candidate = await one.make(case.steps)
        idle = [key for key, other in self._open.items() if not other.busy]
        gone = [self._open.pop(key) for key in idle[: max(0, len(self._open) - MAX_OPEN)]]
        await asyncio.gather(*(other.close() for other in gone))
        interpreted = candidate.uses_triton and self._device == "cpu"
        return EvaluationRequest(
            reference=one.task.program,
            candidate_source=candidate.program,
            candidate_entry=candidate.entry,
            workload=one.task.workload,
            device="interpreter" if interpreted else self._device,
            uses_triton=candidate.uses_triton,
            timeout_s=self._timeout_s,
        )


class _Open:
    """A task and the confined engine that has it open."""

    def __init__(self, case: Case, python: str, device: str, settings: Settings) -> None:
        """Raises CaptureError when the file is no task."""
        made = task_suites.make_task(case.program or "", case.task, Path(f"{case.task}.py"))
        if isinstance(made, str):
            raise CaptureError(f"{case.task} {made}", "look at the folder that judging.tasks names")
        self.task, self._device = made, device
        skills = skillbook.load(skillbook.folders(())).skills
        self._skills = [skill for skill in skills if skill.executable]
        self._scratch = tempfile.TemporaryDirectory(prefix="kernel-lsp-engine-")
        folders = sorted({Path(skill.path).parent for skill in skills})  # they may lie under /tmp
        self._engine = Engine(
            python=python,
            limits=process.Limits(memory_bytes=settings.memory_mb * 2**20),
            confinement=process.Confinement(
                scratch=Path(self._scratch.name), readable=tuple(folders)
            ),
            open_seconds=settings.capture_timeout_s,
        )
        self._opened = False
        self._problem: CaptureError | None = None
        self._turn = asyncio.Lock()

    @property
    def busy(self) -> bool:
        return self._turn.locked()

    async def make(self, steps: Sequence[Step]) -> Candidate:
        async with self._turn:
            if self._problem is not None:
                raise self._problem
            if not self._opened:
                try:
                    await self._engine.open(
                        self.task.program, self.task.workload, self._device, self._skills
                    )
                except CaptureError as error:
                    self._problem = error
                    raise
                self._opened = True
            return await self._engine.make(steps)

    async def close(self) -> None:
        await self._engine.close()
        self._scratch.cleanup()
