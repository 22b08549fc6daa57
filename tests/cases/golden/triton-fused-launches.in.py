"""A scaled norm, and a gate on its result."""

import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, normed_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < width  # BLOCK is a power of two
    place = row * width + columns
    x = tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + 1e-6)
    tl.store(normed_ptr + place, x * scale, mask=mask)


@triton.jit
def gate_kernel(normed_ptr, gate_ptr, out_ptr, n_columns, SIZE: tl.constexpr):
    row = tl.program_id(axis=0)
    cols = tl.arange(0, SIZE)
    mask = cols < n_columns  # SIZE is a power of two
    x = tl.load(normed_ptr + (row * n_columns + cols), mask=mask).to(tl.float32)
    gate = tl.load(gate_ptr + row * n_columns + cols, mask=mask).to(tl.float32)
    tl.store(out_ptr + row * n_columns + cols, x * tl.sigmoid(gate), mask=mask)


# kernel-lsp: workload x=bf16[8192,2048] gate=bf16[8192,2048]
def gated_norm(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """x, gate: (n_rows, width), contiguous."""
    n_rows, width = x.shape
    block = triton.next_power_of_2(width)
    normed = torch.empty_like(x)
    scale_kernel[(n_rows,)](x, normed, width, BLOCK=block)
    out = torch.empty_like(gate)
    gate_kernel[(n_rows,)](normed, gate, out, width, SIZE=block)
    return out
