"""Who judges rollouts: one interface, a table of recorded evaluations or this machine's gate behind it.

A `JudgePool` answers cases in order, each exactly once. A candidate that fails is an outcome; a case that
could not be judged is NOT_RUN with its reason and earns nothing. The local pool asks the very gate, with the
very request, that an editor's offer rests on.
Not covered: how candidates come to be (an engine, a table); the Ray cluster, which has the same interface.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import Gate
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.records import EvalStatus, Evaluation, Step
from trainer.records import Outcome, Status
from trainer.spaces import Space, looked_up


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One candidate to judge."""

    task: str
    steps: tuple[Step, ...] = ()
    """For a table."""
    request: EvaluationRequest | None = None
    """For a gate."""


class JudgePool(Protocol):
    async def judge(self, cases: Sequence[Case]) -> list[Outcome]:
        """One outcome per case, in their order."""

    async def close(self) -> None: ...


class Table:
    """Looks everything up."""

    def __init__(self, spaces: Mapping[str, Space]) -> None:
        self._spaces = spaces
        self.asked = 0

    async def judge(self, cases: Sequence[Case]) -> list[Outcome]:
        self.asked += len(cases)
        return [looked_up(self._spaces[case.task], case.steps) for case in cases]

    async def close(self) -> None:
        pass


class Local:
    """The product's gate on this machine. What was judged once is not judged again."""

    def __init__(self, gate: Gate | None = None, cache: Path | None = None) -> None:
        self._gate = gate or Gate(cache=cache)
        self._known: dict[tuple[str, str, str], asyncio.Task[Outcome]] = {}

    async def judge(self, cases: Sequence[Case]) -> list[Outcome]:
        return list(await asyncio.gather(*(self._outcome(case) for case in cases)))

    async def close(self) -> None:
        """Also ends what is being judged."""
        for task in self._known.values():
            task.cancel()
        await asyncio.gather(*self._known.values(), return_exceptions=True)
        await self._gate.close()

    async def _outcome(self, case: Case) -> Outcome:
        if case.request is None:
            return Outcome(status=Status.REFUSED, complaint="the reply made no candidate")
        key = (case.task, case.request.candidate_entry, case.request.candidate_source)
        if key not in self._known:
            self._known[key] = asyncio.create_task(self._judged(case.request))
        return await asyncio.shield(self._known[key])

    async def _judged(self, request: EvaluationRequest) -> Outcome:
        try:
            return outcome(await self._gate.evaluate(request), complete=request.budget.compile_s > 0)
        except EvaluationError as error:
            return Outcome(status=Status.NOT_RUN, complaint=str(error))


def outcome(evaluation: Evaluation, *, complete: bool) -> Outcome:
    """The gate's verdict as a turn keeps it."""
    passed = evaluation.status is EvalStatus.PASSED
    times = {timing.provider: timing.median_ms for timing in evaluation.timings}
    return Outcome(
        status=Status(evaluation.status.value),
        correct=None if evaluation.status is EvalStatus.NOT_RUN else passed,
        speedups=dict(evaluation.speedups) if passed else {},
        complete=complete,
        candidate_ms=times.get("candidate"),
        evaluation_s=evaluation.seconds,
        complaint="" if passed else evaluation.detail,
    )
