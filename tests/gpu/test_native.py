"""CUDA extensions of a candidate on a GPU: one that is right, one that is wrong, one that is slow
and one that never ends. They are built by nvcc, confined."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest, Gate  # noqa: E402
from kernel_lsp.evaluator.verify import request_from_files  # noqa: E402
from kernel_lsp.records import EvalStatus  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.asyncio(loop_scope="module"),
]
REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * x + 0.5 * torch.tanh(x)

def get_inputs():
    return [torch.randn(256, 1024)]

def get_init_inputs():
    return []
"""
CANDIDATE = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor gate(torch::Tensor x);"
CUDA = r"""
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
__global__ void gate_kernel(const float* x, float* out, int64_t n) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
       i += (int64_t)gridDim.x * blockDim.x) {
    const float v = x[i];
    out[i] = BODY;
  }
}
torch::Tensor gate(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda() && x.is_contiguous() && x.scalar_type() == torch::kFloat);
  const c10::cuda::CUDAGuard guard(x.device());
  auto out = torch::empty_like(x);
  const int64_t n = x.numel();
  if (n == 0) return out;
  gate_kernel<<<GRID, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), out.data_ptr<float>(), n);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
"""
built = load_inline("gate_extension", CPP, CUDA, functions=["gate"])


class ModelNew(nn.Module):
    def forward(self, x):
        return built.gate(x.contiguous())
'''
RIGHT = "v / (1.0f + expf(-v)) + 0.5f * tanhf(v)"
WIDE = "(int)std::min<int64_t>((n + 255) / 256, 4096)"


def request(body: str, grid: str = WIDE, *, faster: bool = False) -> EvaluationRequest:
    text = CANDIDATE.replace("BODY", body).replace("GRID", grid)
    made = request_from_files(
        REFERENCE,
        text,
        device="cuda",
        has_cuda=True,
        require_speed=faster,
        inference=True,
        allow_native=True,
    )
    return replace(made, budget=EvaluationBudget(call_s=30.0))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gate() -> AsyncIterator[Gate]:
    async with Gate() as made:
        yield made


async def test_a_right_one_passes_and_is_timed(gate: Gate) -> None:
    found = await gate.evaluate(request(RIGHT, faster=True), print)
    print(found.speedups, found.environment["native"])
    assert found.status is EvalStatus.PASSED and "release" in found.environment["native"]
    assert found.speedup is not None and found.speedup.low > 1.0, found.speedups


async def test_a_wrong_one_is_refused(gate: Gate) -> None:
    found = await gate.evaluate(request(f"{RIGHT} + 1e-3f"), print)
    assert found.status is EvalStatus.WRONG_RESULT, found.detail


async def test_a_slow_one_is_right_and_not_faster(gate: Gate) -> None:
    found = await gate.evaluate(request(RIGHT, "1", faster=True), print)
    assert found.status is EvalStatus.PASSED, found.detail
    assert found.speedup is not None and found.speedup.high < 1.0 and not found.faster(1.05)


async def test_one_that_never_ends_is_ended(gate: Gate) -> None:
    found = await gate.evaluate(request("0.0f; while (clock64() != 0) { out[0] += 1.0f; }"), print)
    assert found.status is EvalStatus.TIMED_OUT, found.detail


async def test_one_that_reads_outside_is_refused(gate: Gate) -> None:
    found = await gate.evaluate(request("x[i + (1ll << 40)]"), print)
    assert found.status is EvalStatus.RUNTIME_ERROR, found.detail
    # The device is as good as before for who comes next.
    again = await gate.evaluate(request(RIGHT), print)
    assert again.status is EvalStatus.PASSED, again.detail
