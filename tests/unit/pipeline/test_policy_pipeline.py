"""A policy of random weights through the real pipeline on the CPU: valid whatever it says."""

import sys
from functools import partial
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
import tiny_policy  # noqa: E402

from kernel_lsp.agents.backbones.small import runtime  # noqa: E402
from kernel_lsp.config import Settings  # noqa: E402
from kernel_lsp.evaluator import EvaluationBudget  # noqa: E402
from kernel_lsp.models import HeldOut, PolicyStore, seal  # noqa: E402
from kernel_lsp.pipeline import Pipeline, policies, tournament  # noqa: E402
from kernel_lsp.records import EvalStatus, Job, Progress  # noqa: E402

SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 96)

    def forward(self, x):
        h = torch.relu(torch.relu(self.layer(x)))
        return torch.logsumexp(h.sum(dim=1, keepdim=True), dim=1)


def get_inputs():
    return [torch.randn(128, 64)]
"""
BETTER = HeldOut(
    metric="first/best", tasks=64, value=0.97, low=0.95, high=0.98, rule=0.90, device="test"
)  # fmt: skip


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    made, store = tmp_path / "made", PolicyStore(tmp_path / "data")
    tiny_policy.write(made, **tiny_policy.TINY)
    seal(made, name="tiny", version="1", held_out=BETTER)
    store.install(made)
    store.use("tiny")
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged in full, in little time: torch.compile, no matter here, is asked for and takes
    longer."""
    monkeypatch.setattr(tournament, "FULL", EvaluationBudget(compile_s=0.1, timing_s=0.5))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule does not take over because others compute on the same cores."""
    monkeypatch.setattr(runtime, "LOAD_S", 240.0)
    monkeypatch.setattr(policies, "Runtime", partial(runtime.Runtime, reply_s=120.0))


async def test_what_a_random_model_says_is_valid_and_recorded(
    data_dir: Path, tmp_path: Path
) -> None:
    told: list[Progress] = []
    settings = Settings(data_dir=str(data_dir), python=sys.executable, evaluate_timeout_s=500.0)
    pipeline = Pipeline(settings)
    job = Job(
        text=SOURCE, path=str(tmp_path / "model.py"), qualname="Model", device="cpu", budget=1
    )
    try:
        outcome = await pipeline.optimize(job, told.append)
        again = await pipeline.cached(job)
        PolicyStore(data_dir).use("rule")
        other = await pipeline.cached(job)
    finally:
        await pipeline.close()
    assert not [one for one in told if "planned by the rule" in one.message]
    (proposal,) = outcome.proposals
    assert proposal.candidate.proposer.startswith("policy:tiny@1#")
    assert proposal.candidate.steps
    assert proposal.evaluation.status is EvalStatus.PASSED, proposal.evaluation
    # What the policy has found is no answer for the rule.
    assert again is not None and other is None


KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def residual_kernel(x_ptr, skip_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    skip = tl.load(skip_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + skip, mask=mask)


# kernel-lsp: workload x=f32[8,256] skip=f32[8,256]
def residual(x, skip):
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 64),)
    residual_kernel[grid](x, skip, out, x.numel(), BLOCK=64)
    return out
"""


async def test_a_triton_kernel_is_planned_by_what_was_trained_for_kernels(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    made, store = tmp_path / "made", PolicyStore(tmp_path / "data")
    tiny_policy.write(made, **tiny_policy.TINY)
    seal(made, name="tiny", version="1", held_out=BETTER, targets=("kernel",))
    store.install(made)
    store.use("tiny")
    told: list[Progress] = []
    settings = Settings(
        data_dir=str(tmp_path / "data"), python=sys.executable, evaluate_timeout_s=500.0
    )
    pipeline = Pipeline(settings)
    job = Job(
        text=KERNEL, path=str(tmp_path / "k.py"), qualname="residual_kernel", device="cpu", budget=1
    )
    try:
        async with pipeline.opened(job, told.append) as one:
            planner = pipeline.policies.planner(one, told.append)
            found = [
                ranked_plan async for ranked_plan in planner.ranked_plans(one.sites, triton=True)
            ]
        outcome = await pipeline.optimize(job, told.append)
    finally:
        await pipeline.close()
    assert not [one for one in told if "planned by the rule" in one.message]
    assert found[0].candidate.proposer.startswith("policy:tiny@1#")
    (proposal,) = outcome.proposals
    assert proposal.candidate.proposer.startswith("policy:tiny@1#")
    assert proposal.evaluation.status is EvalStatus.PASSED, proposal.evaluation
