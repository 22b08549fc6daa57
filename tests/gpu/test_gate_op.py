"""The gate on an operator with a backward of its own: its kernels as targets, judged with their
gradients.

`-m "not gpu"` asks the same in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import pytest_asyncio

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest, Gate  # noqa: E402
from kernel_lsp.pipeline.prepare import PreparedJob, prepare  # noqa: E402
from kernel_lsp.records import EvalStatus, Job  # noqa: E402

NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]

OP = """
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, w_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * tl.load(w_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def grads_kernel(dy_ptr, x_ptr, w_ptr, dx_ptr, dw_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    dy = tl.load(dy_ptr + offsets, mask=mask)
    x = tl.load(x_ptr + offsets, mask=mask)
    w = tl.load(w_ptr + offsets, mask=mask)
    tl.store(dx_ptr + offsets, dy * w, mask=mask)
    tl.store(dw_ptr + offsets, dy * x, mask=mask)


# kernel-lsp: workload x=f32[61,1000] grad w=f32[61,1000] grad
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        out, n = torch.empty_like(x), x.numel()
        scale_kernel[(triton.cdiv(n, 1024),)](x, w, out, n, BLOCK=1024)
        ctx.save_for_backward(x, w)
        return out

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dx, dw, n = torch.empty_like(x), torch.empty_like(w), x.numel()
        grads_kernel[(triton.cdiv(n, 1024),)](dy.contiguous(), x, w, dx, dw, n, BLOCK=1024)
        return dx, dw
"""
FORWARD, BACKWARD = "scale_kernel", "grads_kernel"


def asked(kernel: str, change: tuple[str, str], device: str) -> EvaluationRequest:
    made = prepare(Job(text=OP, path="/w/op.py", qualname=kernel, device="cuda"))
    assert isinstance(made, PreparedJob), made
    text = made.program.source.replace(*change)
    assert text != made.program.source
    return EvaluationRequest(
        reference=made.program,
        candidate_source=text,
        candidate_entry=made.program.entry,
        workload=made.workload,
        device=device,
        require_speed=False,
        uses_triton=True,
        budget=EvaluationBudget(compile_s=0, timing_s=0.5, call_s=30),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate():
    async with Gate() as opened:
        yield opened


DEVICES = ["interpreter", pytest.param("cuda", marks=[pytest.mark.gpu, NO_CUDA])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernel", [FORWARD, BACKWARD])
async def test_another_block_is_right_with_its_gradients(
    gate: Gate, kernel: str, device: str
) -> None:
    evaluation = await gate.evaluate(asked(kernel, ("1024", "512"), device))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    assert evaluation.device == device


WRONG = {
    "values": (FORWARD, ("x * tl.load", "1.01 * x * tl.load")),
    "gradients behind right values": (FORWARD, ("dy * w", "dy * w * 1.01")),
    "gradients of one input": (BACKWARD, ("dy * x", "dy * x * 1.01")),
    "a tail that nobody writes": (
        BACKWARD,
        ("mask = offsets < n\n    dy", "mask = offsets < n - 5\n    dy"),
    ),
    "what was saved": (FORWARD, ("save_for_backward(x, w)", "save_for_backward(w, x)")),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wrong", WRONG)
async def test_wrong_values_and_wrong_gradients_are_rejected(
    gate: Gate, wrong: str, device: str
) -> None:
    kernel, change = WRONG[wrong]
    evaluation = await gate.evaluate(asked(kernel, change, device))
    assert evaluation.status is EvalStatus.WRONG_RESULT, evaluation.detail


@pytest.mark.gpu
@NO_CUDA
async def test_a_backward_has_times_of_the_device(gate: Gate) -> None:
    request = replace(asked(BACKWARD, ("1024", "512"), "cuda"), require_speed=True)
    evaluation = await gate.evaluate(request)
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    timed = {timing.provider: timing.median_ms for timing in evaluation.timings}
    assert {"eager", "candidate"} <= set(timed) and all(ms > 0 for ms in timed.values())
