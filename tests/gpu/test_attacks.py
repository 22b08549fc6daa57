"""Every attack and every honest candidate of tests/adversarial/ on a CUDA device, and those that
need one.

The same files as on a CPU (test_candidates.py says how they are asked about), judged by one warm
gate."""

import importlib.util
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator import EvaluationRequest, Gate  # noqa: E402
from kernel_lsp.records import EvalStatus  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.asyncio(loop_scope="module"),
]
ADVERSARIAL = Path(__file__).parent.parent / "adversarial"
_spec = importlib.util.spec_from_file_location(
    "adversarial_candidates", ADVERSARIAL / "test_candidates.py"
)
assert _spec is not None and _spec.loader is not None
candidates = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(candidates)
ATTACKS = [
    path
    for name in ("attacks_cuda", "attacks")
    for path in sorted((ADVERSARIAL / name).rglob("*.py"))
]
HONEST = [
    path
    for name in ("honest_cuda", "honest")
    for path in sorted((ADVERSARIAL / name).rglob("*.py"))
]
ENDLESS_S = 4.0
"""How long a call may take here: the attacks that never end are the slowest."""


def name(path: Path) -> str:
    return path.relative_to(ADVERSARIAL).with_suffix("").as_posix()


def request(path: Path) -> EvaluationRequest:
    made = candidates.request(path, candidates.LONG_S)
    return replace(
        made, device="cuda", budget=replace(made.budget, call_s=ENDLESS_S, memory_bytes=None)
    )


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gate() -> AsyncIterator[Gate]:
    async with Gate() as made:
        yield made


@pytest.mark.parametrize("attack", ATTACKS, ids=name)
async def test_an_attack_is_rejected_on_a_gpu(gate: Gate, attack: Path) -> None:
    evaluation = await gate.evaluate(request(attack))
    assert evaluation.status is not EvalStatus.PASSED
    assert evaluation.detail and evaluation.speedup is None


@pytest.mark.parametrize("candidate", HONEST, ids=name)
async def test_an_honest_candidate_passes_on_a_gpu(gate: Gate, candidate: Path) -> None:
    evaluation = await gate.evaluate(request(candidate))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
