"""Limits of time begin when whoever is asked is ready: a cold start is nobody's fault."""

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any, cast

import pytest

from kernel_lsp.evaluator import EvaluationBudget, Gate
from kernel_lsp.evaluator.processes.pool import ZygotePool
from kernel_lsp.evaluator.processes.sandbox import Party
from kernel_lsp.evaluator.trials import Trials
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.process import Child
from kernel_lsp.records import EvalStatus

PROGRAM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) + {one}

def get_inputs():
    return [torch.rand(32, 16)]
"""
LIMITS_S = (2.0, 6.0, 18.0, 54.0)
"""One after the other until one suffices for a judgement: a machine that pauses needs more time,
and where a cold start counted none would suffice."""


@pytest.mark.torch
@pytest.mark.parametrize("slow", ["judge", "worker"])
@pytest.mark.parametrize("whole", [False, True], ids=["its-request", "the-whole"])
async def test_a_cold_start_counts_against_no_limit(
    slow: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, limit_s = ZygotePool.start, LIMITS_S[0]

    async def started(self: ZygotePool, module: str, *argv: str, **how: Any) -> Child:
        child = await start(self, module, *argv, **how)
        if module.endswith(f".{slow}"):
            os.killpg(child.process.pid, signal.SIGSTOP)
            wake = os.killpg, child.process.pid, signal.SIGCONT
            asyncio.get_running_loop().call_later(1.5 * limit_s, *wake)
        return child

    monkeypatch.setattr(ZygotePool, "start", started)
    made = request_from_files(PROGRAM.format(one="1"), PROGRAM.format(one="1.0"), device="cpu")
    for limit_s in LIMITS_S:
        limits = {"timeout_s": limit_s} if whole else {"budget": EvaluationBudget(load_s=limit_s)}
        async with Gate() as gate:
            evaluation = await gate.evaluate(replace(made, require_speed=False, **limits))  # type: ignore[arg-type]
        if evaluation.status is EvalStatus.PASSED:
            break
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail


async def test_the_first_question_of_a_kind_may_take_as_long_as_loading_besides() -> None:
    limits: list[tuple[str, float]] = []

    class AskedJudge:
        async def ask(self, do: str, timeout_s: float, *rest: Any, **fields: Any) -> Any:
            limits.append((do, timeout_s))
            return {}, []

    made = request_from_files(PROGRAM, PROGRAM, device="cpu", inference=True)
    asked = replace(made, budget=EvaluationBudget(load_s=60.0, call_s=4.0))
    nobody: Any = None
    judge = cast(Party, AskedJudge())
    trials = Trials(asked, judge, nobody, {}, nobody, asyncio.Event())
    for do in ("rehearse", "compare", "compare"):
        await trials._ask_judge(do)
    assert limits == [("rehearse", 64.0), ("compare", 64.0), ("compare", 4.0)]
