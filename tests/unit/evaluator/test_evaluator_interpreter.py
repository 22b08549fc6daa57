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
