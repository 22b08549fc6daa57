"""Every attack here must be rejected and every honest candidate must pass, through the public gate.

One file is one candidate; its docstring says what it does. Files in a folder are about the reference of
that name in references/, the others about reference.py. The attacks are our own.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lsp.evaluator import Budget, EvaluationRequest, evaluate
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import ArgSpec, EvalStatus, Workload, WorkloadOrigin

pytestmark = pytest.mark.torch
HERE = Path(__file__).parent
ATTACKS = sorted((HERE / "attacks").rglob("*.py"))
HONEST = sorted((HERE / "honest").rglob("*.py"))
GRADIENTS = Workload(
    name="training",
    origin=WorkloadOrigin.RECORDED,
    inputs=(ArgSpec(name=None, dtype="float32", shape=(16, 64), requires_grad=True),),
)
TIMED_ONLY = {
    "every_tenth_call_empty",
    "half_of_the_calls_empty",
    "memo_by_versions",
    "only_after_warm_up",
    "phase_by_address",
    "phase_by_parameters",
    "threads_changed_in_its_calls",
}
"""Attacks that behave while values are checked and show only in timed rounds."""


def name(candidate: Path) -> str:
    return candidate.relative_to(HERE).with_suffix("").as_posix().split("/", 1)[1]


def request(candidate: Path) -> EvaluationRequest:
    folder = candidate.parent.name
    about = HERE / "references" / f"{folder}.py"
    reference = about if about.exists() else HERE / "reference.py"
    entry = "blend" if folder == "options" else None
    made = request_from_files(reference.read_text(), candidate.read_text(), entry=entry)
    if folder == "trained":
        made = replace(made, workload=GRADIENTS)
    timed = candidate.stem in TIMED_ONLY
    budget = Budget(call_s=10, load_s=20, compile_s=0, timing_s=0.5, memory_bytes=6 * 1024**3)
    return replace(made, require_speed=timed, budget=budget)


@pytest.mark.parametrize("attack", ATTACKS, ids=name)
async def test_an_attack_is_rejected(attack: Path) -> None:
    evaluation = await evaluate(request(attack))
    assert evaluation.status is not EvalStatus.PASSED
    assert evaluation.detail
    assert not evaluation.speedups and evaluation.speedup is None


@pytest.mark.parametrize("candidate", HONEST, ids=name)
async def test_an_honest_candidate_passes(candidate: Path) -> None:
    evaluation = await evaluate(request(candidate))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
