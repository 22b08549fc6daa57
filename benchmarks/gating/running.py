"""Many candidates through one gate within a time box; what a part of the benchmark reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import EvalStatus, Evaluation

Evaluate = Callable[[EvaluationRequest], Awaitable[Evaluation]]
QuestionKey = TypeVar("QuestionKey")
GRACE_S = 20.0
"""How long what has begun may go on after its time box."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged(Generic[QuestionKey]):
    """One verdict, or why there is none."""

    key: QuestionKey
    status: EvalStatus | None
    """None: could not be judged."""
    detail: str
    seconds: float
    evaluation: Evaluation | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GateRow:
    """One line of the table of bars."""

    what: str
    bar: str
    measured: str
    met: bool | None
    """None: not measured here, or no bar."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GatePart:
    rows: list[GateRow]
    notes: list[str] = field(default_factory=list)
    """Lines for the reader: what failed, the worst, what was not run."""
    data: list[dict[str, Any]] = field(default_factory=list)
    """Everything measured, for the JSON file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """One device, one gate and how many candidates are sent at a time."""

    device: str
    evaluate: Evaluate
    at_once: int

    def request(self, reference: str, candidate: str, **budget: Any) -> EvaluationRequest:
        """Inference, without torch.compile and with short rounds, unless ``budget`` says
        otherwise."""
        cuda = self.device == "cuda"
        made = request_from_files(
            reference, candidate, device=self.device, has_cuda=cuda, inference=True
        )
        return replace(
            made,
            budget=EvaluationBudget(**{"compile_s": 0, "timing_s": 0.5, "call_s": 20, **budget}),
        )

    def here(self, request: EvaluationRequest, *, timed: bool) -> EvaluationRequest:
        """The same request on this device; timed also where it was not."""
        device = "cuda" if self.device == "cuda" else request.device
        return replace(request, device=device, require_speed=timed or request.require_speed)

    async def judge(self, key: QuestionKey, request: EvaluationRequest) -> Judged[QuestionKey]:
        start = time.monotonic()
        try:
            evaluation = await self.evaluate(request)
        except EvaluationError as error:
            return Judged(key=key, status=None, detail=str(error), seconds=time.monotonic() - start)
        return Judged(
            key=key,
            status=evaluation.status,
            detail=evaluation.detail,
            seconds=time.monotonic() - start,
            evaluation=evaluation,
        )

    async def judge_all(
        self, jobs: Iterator[tuple[QuestionKey, EvaluationRequest]], seconds: float
    ) -> list[Judged[QuestionKey]]:
        """In the order in which they end; none is begun after ``seconds``, none runs much
        longer."""
        end, done = time.monotonic() + seconds, list[Judged[QuestionKey]]()

        async def worker() -> None:
            while time.monotonic() < end and (job := next(jobs, None)) is not None:
                done.append(await self.judge(*job))

        workers = [asyncio.create_task(worker()) for _ in range(self.at_once)]
        _, late = await asyncio.wait(workers, timeout=seconds + GRACE_S)
        for task in late:
            task.cancel()
        for outcome in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        return done
