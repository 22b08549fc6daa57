"""The tuner on a CUDA device: kernels compiled beside each other, what does not fit dropped, a
whole job."""

import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.config import Settings  # noqa: E402
from kernel_lsp.evaluator import Gate  # noqa: E402
from kernel_lsp.evaluator.tuning import TunedVariant, TuneRequest  # noqa: E402
from kernel_lsp.pipeline import Pipeline  # noqa: E402
from kernel_lsp.pipeline.known import FOLDER  # noqa: E402
from kernel_lsp.records import (  # noqa: E402
    Job,
    Program,
    Progress,
    TargetKind,
    TorchSetting,
    Verdict,
    Workload,
    WorkloadOrigin,
)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

REFERENCE = """
import torch


def scaled(x):
    return torch.relu(x * 2 + 1) * x


def get_inputs():
    return [torch.randn(2048, 4096)]
"""
CANDIDATE = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    y = tl.maximum(x * 2 + 1, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out_ptr + offs, y * x{wrong}, mask=offs < n)


def scaled(x):
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), {block}),)](x, out, x.numel(), BLOCK={block}, num_warps={warps})
    return out
"""
REQUEST = TuneRequest(
    reference=Program(source=REFERENCE, entry="scaled", kind=TargetKind("function")),
    workload=Workload(
        name="test", origin=WorkloadOrigin.GET_INPUTS, setting=TorchSetting(gradients=False)
    ),
    device="cuda",
    uses_triton=True,
)


def variant(name: str, *, block: int = 1024, warps: int = 4, wrong: str = "") -> TunedVariant:
    return TunedVariant(
        name=name, source=CANDIDATE.format(block=block, warps=warps, wrong=wrong), entry="scaled"
    )


async def test_kernels_are_compiled_compared_and_what_cannot_work_is_dropped() -> None:
    variants = [
        variant("usual"),
        variant("tiny", block=32, warps=1),  # 260,000 programs of one warp: several times slower
        variant("odd", block=1000),  # arange needs a power of two: does not compile
        variant("wrong", wrong=" + 1.0"),
        variant("wide", block=4096, warps=8),
    ]
    async with Gate() as gate, gate.tuner(REQUEST) as tuner:
        race = await tuner.race(variants)
    assert race.order[0] in ("usual", "wide") and race.order[-1] == "tiny"
    assert race.dropped.keys() == {"odd", "wrong"}
    assert race.speedup(race.order[0]) > 1.5  # one pass instead of four


async def test_a_job_searches_judges_the_winner_in_full_and_remembers_it(tmp_path: Path) -> None:
    # A product in float32 on tensor cores: twice as fast as what torch.compile makes of it.
    text = (
        "import torch\n\n\nclass Wide(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.layer = torch.nn.Linear(1024, 2048)\n\n"
        "    def forward(self, x):\n        return torch.relu(self.layer(x))\n\n\n"
        "def get_inputs():\n    return [torch.randn(4096, 1024)]\n"
    )
    job = Job(text=text, path=str(tmp_path / "wide.py"), qualname="Wide", device="cuda")
    settings = Settings(data_dir=str(tmp_path / "data"))
    said: list[Progress] = []
    pipeline = Pipeline(settings)
    try:
        outcome = await pipeline.optimize(job, said.append)
        assert outcome.best is not None and outcome.best.verdict is Verdict.FASTER, outcome.note
        assert any(p.phase == "tune" and "left" in p.message for p in said)
        assert list((tmp_path / "data" / FOLDER).glob("*.json"))
        shutil.rmtree(tmp_path / "data" / "cache")
        said.clear()
        again = await pipeline.optimize(job, said.append)
        assert again.best is not None and again.best.verdict is Verdict.FASTER
        chosen = outcome.best.candidate.steps[0].parameters
        assert again.proposals[0].candidate.steps[0].parameters == chosen
    finally:
        await pipeline.close()
