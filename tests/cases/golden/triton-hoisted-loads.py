"""Rows brought to length 1, then weighted, once for each of several heads."""

import torch
import triton
import triton.language as tl


@triton.jit
def heads_kernel(x_ptr, weight_ptr, gain_ptr, shift_ptr, out_ptr, n_rows, width, n_heads, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < width  # the block is the next power of two
    x = tl.load(x_ptr + row * width + columns, mask=mask, other=0.0)
    # One for each column, the same in all rows.
    weight = tl.load(weight_ptr + columns, mask=mask)
    gain = tl.load(gain_ptr + row, mask=n_heads > 0)  # the row's own
    length = tl.sqrt(tl.sum(x * x, axis=0))
    direction = x / length * weight
    for head in range(n_heads):
        shift = tl.load(shift_ptr + head)
        place = (head * n_rows + row) * width + columns
        tl.store(out_ptr + place, direction * gain + shift, mask=mask)


# kernel-lsp: workload x=f32[4096,1000] weight=f32[1000] gain=f32[4096] shift=f32[8]
def heads(x: torch.Tensor, weight: torch.Tensor, gain: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """x: (n_rows, width), contiguous; weight: (width,); gain: (n_rows,); shift: (n_heads,)."""
    n_rows, width = x.shape
    out = torch.empty((shift.numel(), n_rows, width), device=x.device)
    block = triton.next_power_of_2(width)
    heads_kernel[(n_rows,)](x, weight, gain, shift, out, n_rows, width, shift.numel(), BLOCK=block)
    return out
