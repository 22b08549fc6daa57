"""Triton kernels with mistakes that are hard to see: `kernel-lsp check examples/triton_add.py`."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_rows_kernel(x_ptr, y_ptr, out_ptr, num_rows, num_cols, BLOCK: tl.constexpr):
    batch = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    base = batch * num_rows * num_cols
    mask = cols < num_rows * num_cols
    x = tl.load(x_ptr + base + cols, mask=mask)
    y = tl.load(y_ptr + cols, mask=mask)
    tl.store(out_ptr + base + cols, x + y)


def add_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x of shape (batch, rows, cols) plus y of shape (rows, cols)."""
    batch, num_rows, num_cols = x.shape
    out = torch.empty_like(x)
    grid = (batch, triton.cdiv(num_rows * num_cols, 1024))
    add_rows_kernel[grid](x, y, out, num_rows, num_cols, BLOCK=1024)
    return out


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, num_cols, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), dtype=tl.float16)
    for start in range(0, num_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + row * stride + cols, mask=cols < num_cols, other=0.0)
    tl.store(out_ptr + row, tl.sum(acc))


def row_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
    row_sum_kernel[(x.shape[0],)](x, out, x.shape[1], x.stride(0), BLOCK=1024)
    return out
