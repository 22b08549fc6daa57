"""A walk with the real engine and gate, in Triton's interpreter, and what cannot be walked.

One judgement alone, because each takes seconds; tests/unit/lineage/test_lineage.py has walks that a script
judges."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.errors import CaptureError, KernelLspError
from kernel_lsp.lineage import environment, kept, lessons, walking
from kernel_lsp.lineage.kept import Judgements
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.presenter import lineages
from kernel_lsp.records import Job
from kernel_lsp.workloads import pragma

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton"),
]

KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def twice_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, eviction_policy="evict_first")
    tl.store(out_ptr + offsets, x * 2.0, mask=offsets < n)


def twice(x):
    out = torch.empty_like(x)
    twice_kernel[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK=16)
    return out
"""


def asked(workload: str | None, kernel: str = "twice_kernel") -> environment.LineageRequest:
    job = Job(text=KERNEL, path="k.py", qualname=kernel, device="cpu")
    return environment.LineageRequest(
        job=job, workload=pragma.parse(workload) if workload else None
    )


async def test_a_kernel_is_walked_back_in_the_interpreter_and_nothing_of_it_is_drafted(
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(Settings(data_dir=str(tmp_path)))
    try:
        async with environment.set_up(pipeline, asked("x=f32[20]"), lambda step: None) as on:
            walk = walking.LineageWalk(
                on=on, judgements=Judgements(on.place), report=lambda step: None
            )
            found = await lessons.learn(walk, await walk.run())
            kept.write(on.place, found, lineages.markdown(found))
    finally:
        await pipeline.close()
    assert [step.operator for step in found.steps] == ["no_eviction"] and found.finished
    assert not found.measured and found.steps[0].judgement.effect is None
    assert {kernel.arch for kernel in found.steps[0].judgement.kernels} == {"sm_80", "sm_90"}
    assert [skill.standing for skill in found.skills] == [
        "not drafted: nothing was measured on this device"
    ]
    assert list(kept.lineages(tmp_path)) == [found] and not (tmp_path / "library").exists()


@pytest.mark.parametrize(
    ("of", "error", "said"),
    [
        (asked(None), CaptureError, "no workload"),
        (asked("x=f32[20]", "none"), CaptureError, "there is no none"),
    ],
    ids=["no workload", "no such kernel"],
)
async def test_what_cannot_be_walked_is_said(
    tmp_path: Path, of: environment.LineageRequest, error: type[KernelLspError], said: str
) -> None:
    with pytest.raises(error, match=said):
        async with environment.set_up(
            Pipeline(Settings(data_dir=str(tmp_path))), of, lambda step: None
        ):
            raise AssertionError("there is nothing to walk")
