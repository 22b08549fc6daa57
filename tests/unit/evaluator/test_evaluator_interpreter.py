"""Triton's interpreter launches what a device launches: a file that runs there is judged, not
blamed."""

from pathlib import Path

import pytest
from rewrite_helpers import interpreted

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

KERNEL = """
from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def square_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, x * x, mask=at < n)


def square(x, grid):
    out = torch.empty_like(x)
    square_kernel[grid](x, out, x.numel(), BLOCK=64)
    return out
"""
RUN = """
import runpy, sys, torch, triton
sys.path.insert(0, sys.argv[2])
from kernel_lsp.evaluator.devices.interpreter import first_configurations
first_configurations()
square = runpy.run_path(sys.argv[1])["square"]
x = torch.randn(100)
grids = ([2], (2,), lambda meta: [triton.cdiv(100, meta["BLOCK"])], lambda meta: (2, 1))
for grid in grids:
    torch.testing.assert_close(square(x, grid), x * x)
"""


def test_grids_are_lists_and_annotations_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "square.py"
    path.write_text(KERNEL)
    interpreted(RUN, str(path), str(Path(__file__).resolve().parents[3]))


BFLOAT16 = """
import torch
import triton
import triton.language as tl


@triton.jit
def combine_kernel(x_ptr, y_ptr, out_ptr, OPERATION: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    if OPERATION == "add":
        found = x + y
    elif OPERATION == "subtract":
        found = x - y
    elif OPERATION == "multiply":
        found = x * y * 1.7
    elif OPERATION == "divide":
        found = x / y
    elif OPERATION == "negate":
        found = -x
    elif OPERATION == "larger":
        found = tl.maximum(x, y)
    elif OPERATION == "choose":
        found = tl.where((x > y) & (x != 0), x, y)
    elif OPERATION == "clamp":
        found = tl.clamp(x, -tl.abs(y), tl.abs(y))
    elif OPERATION == "sum":
        found = x + tl.sum(x, axis=0)
    elif OPERATION == "running":
        found = tl.cumsum(x, axis=0)
    elif OPERATION == "largest":
        found = y + tl.max(x, axis=0)
    elif OPERATION == "sort":
        found = tl.sort(x)
    elif OPERATION == "whole":
        found = x.to(tl.int32).to(tl.bfloat16)
    elif OPERATION == "exp":
        found = tl.exp(x.to(tl.float32)).to(tl.bfloat16)
    elif OPERATION == "half":
        found = x.to(tl.float16).to(tl.bfloat16)
    tl.store(out_ptr + at, found)


@triton.jit
def multiply_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(x_ptr + at), tl.load(y_ptr + at)))


@triton.jit
def scatter_kernel(x_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.atomic_add(out_ptr + at % 4, tl.load(x_ptr + at), mask=at < N - 1)
"""
COMPUTE = """
import runpy, sys, torch
sys.path.insert(0, sys.argv[2])
from kernel_lsp.evaluator.devices.interpreter import first_configurations
first_configurations()
kernels = runpy.run_path(sys.argv[1])
torch.manual_seed(0)
x, y = (torch.randn(64).to(torch.bfloat16) for _ in range(2))
want = {
    "add": x + y, "subtract": x - y, "multiply": x * y * 1.7, "divide": x / y, "negate": -x,
    "larger": torch.maximum(x, y), "choose": torch.where(x > y, x, y),
    "clamp": torch.clamp(x, -y.abs(), y.abs()), "sum": x + x.float().sum().to(torch.bfloat16),
    "running": x.float().cumsum(0).to(torch.bfloat16), "largest": y + x.max(),
    "sort": x.sort().values, "whole": x.int().to(torch.bfloat16), "exp": x.float().exp().to(torch.bfloat16),
    "half": x.half().to(torch.bfloat16),
}
for operation, expected in want.items():
    out = torch.full_like(x, torch.nan)
    kernels["combine_kernel"][(1,)](x, y, out, operation, 64)
    exact = operation not in ("multiply", "running", "sum", "exp")  # of more than one rounding
    torch.testing.assert_close(out, expected, rtol=0 if exact else 2**-7, atol=0 if exact else 2**-8,
                               msg=lambda text: operation + ": " + text)
x, y = (torch.randn(16, 16).to(torch.bfloat16) for _ in range(2))
out = torch.empty(16, 16)
kernels["multiply_kernel"][(1,)](x, y, out, 16)
torch.testing.assert_close(out, x.float() @ y.float())
# to the nearest, the even one of two; what has no number stays without
odd = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, torch.inf, -torch.inf, torch.nan,
                    3.4e38, -0.0])
out = torch.zeros(8, dtype=torch.bfloat16)
triton, tl = kernels["triton"], kernels["tl"]
kernels["scatter_kernel"][(1,)](torch.full((8,), 1.0, dtype=torch.bfloat16), out, 8)
assert out.tolist() == [2, 2, 2, 1, 0, 0, 0, 0], out
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
cut = InterpreterBuilder().create_fp_trunc(TensorHandle(odd.numpy(), tl.float32), tl.bfloat16)
got = torch.from_numpy(cut.data.view("int16")).view(torch.bfloat16)
assert torch.equal(got.nan_to_num(7.0), odd.to(torch.bfloat16).nan_to_num(7.0)), got
assert bool(torch.isnan(got[5])) and torch.signbit(got[7])
"""


def test_bfloat16_is_computed_as_a_device_computes_it(tmp_path: Path) -> None:
    path = tmp_path / "narrow.py"
    path.write_text(BFLOAT16)
    interpreted(COMPUTE, str(path), str(Path(__file__).resolve().parents[3]))
