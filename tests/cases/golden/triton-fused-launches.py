"""A scaled norm, and a gate on its result."""

import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr, gate_ptr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < width  # BLOCK is a power of two
    place = row * width + columns
    x = tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + 1e-6)
    stored = tl.cast(x * scale, x_ptr.dtype.element_ty)
    x_2 = stored.to(tl.float32)
    gate = tl.load(gate_ptr + row * width + columns, mask=mask).to(tl.float32)
    tl.store(out_ptr + row * width + columns, x_2 * tl.sigmoid(gate), mask=mask)


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
    out = torch.empty_like(gate)
    scale_kernel[(n_rows,)](x, out, width, BLOCK=block, gate_ptr=gate)
    return out
