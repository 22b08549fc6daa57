"""Every attack here must be rejected and every honest candidate must pass, through the public gate.

One file is one candidate; its docstring says what it does. The attacks are our own.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lsp.evaluator import Budget, EvaluationRequest, evaluate
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import EvalStatus

pytestmark = pytest.mark.torch
HERE = Path(__file__).parent
ATTACKS = sorted((HERE / "attacks").glob("*.py"))
HONEST = sorted((HERE / "honest").glob("*.py"))
TIMED_ONLY = {"only_after_warm_up"}
"""Attacks that behave while values are checked and show only in timed rounds."""


def request(candidate: Path) -> EvaluationRequest:
    made = request_from_files((HERE / "reference.py").read_text(), candidate.read_text())
    timed = candidate.stem in TIMED_ONLY
    budget = Budget(call_s=20, compile_s=0, timing_s=0.5)
    return replace(made, require_speed=timed, budget=budget)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda path: path.stem)
async def test_an_attack_is_rejected(attack: Path) -> None:
    evaluation = await evaluate(request(attack))
    assert evaluation.status is not EvalStatus.PASSED
    assert evaluation.detail
    assert not evaluation.speedups and evaluation.speedup is None


@pytest.mark.parametrize("candidate", HONEST, ids=lambda path: path.stem)
async def test_an_honest_candidate_passes(candidate: Path) -> None:
    evaluation = await evaluate(request(candidate))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
