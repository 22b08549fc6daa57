"""Which baselines took part is part of the evidence; timed rounds judge random references too."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from kernel_lsp.evaluator import EvaluationBudget, Gate
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import Check, EvalStatus, Evaluation

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]
REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {body}

def get_inputs():
    return [torch.rand(64, 256)]
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate() -> AsyncIterator[Gate]:
    """Torch is imported once for all of these tests; what a gate leaves behind is tested in
    test_gate."""
    async with Gate() as made:
        yield made


async def judged(gate: Gate, body: str, compile_s: float) -> Evaluation:
    """A program against itself."""
    text = REFERENCE.format(body=body)
    budget = EvaluationBudget(compile_s=compile_s, timing_s=0.3)
    asked = request_from_files(text, text, device="cpu", timeout_s=500.0)
    return await gate.evaluate(replace(asked, budget=budget))


def named(evaluation: Evaluation, name: str) -> Check | None:
    return next((check for check in evaluation.checks if check.name == name), None)


async def test_without_time_for_the_compiler_eager_is_the_only_baseline_and_the_evidence_says_so(
    gate: Gate,
) -> None:
    evaluation = await judged(gate, "torch.tanh(x) + 1", 0)
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    assert evaluation.environment["baselines"] == ["eager"] == list(evaluation.speedups)
    skipped = named(evaluation, "compile-baseline")
    assert skipped is not None and skipped.passed is None and "not asked for" in skipped.detail


async def test_a_compiler_that_is_out_of_time_is_no_baseline_and_the_evidence_says_so(
    gate: Gate,
) -> None:
    evaluation = await judged(gate, "torch.tanh(x) + 1", 0.01)
    assert evaluation.environment["baselines"] == ["eager"]
    skipped = named(evaluation, "compile-baseline")
    assert skipped is not None and skipped.passed is None and "took longer" in skipped.detail


@pytest.mark.timeout(600)
async def test_the_compiled_reference_is_a_baseline(gate: Gate) -> None:
    evaluation = await judged(gate, "torch.tanh(x) + 1", 400)
    assert evaluation.environment["baselines"] == ["eager", "compile"], evaluation.checks
    assert named(evaluation, "compile-baseline") is None
    assert {timing.provider for timing in evaluation.timings} == {"eager", "compile", "candidate"}


async def test_timed_rounds_of_a_random_program_are_judged_on_its_own_stream(gate: Gate) -> None:
    evaluation = await judged(gate, "torch.nn.functional.dropout(x, 0.5)", 0)
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    assert "eager" in evaluation.speedups


async def test_a_compiled_reference_that_crashes_is_no_baseline_and_costs_nobody_the_verdict(
    gate: Gate,
) -> None:
    """What torch.compile makes reads far outside its input; eager does not."""
    evaluation = await judged(
        gate, "x[torch.arange(64) + (2**40 if torch.compiler.is_compiling() else 0)] * 2", 100
    )
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    assert evaluation.environment["baselines"] == ["eager"]
    skipped = named(evaluation, "compile-baseline")
    assert skipped is not None and skipped.passed is None and "SIGSEGV" in skipped.detail
