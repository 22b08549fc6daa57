"""The mean of each row, and how far its largest number is from it."""

import torch
import triton
import triton.language as tl


@triton.jit
def spread_kernel(x_ptr, mean_ptr, spread_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
    mean = tl.sum(total, axis=0) / columns
    farthest = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
        farthest = tl.maximum(farthest, tl.where(column < columns, tl.abs(x - mean), 0.0))
    tl.store(mean_ptr + row, mean)
    tl.store(spread_ptr + row, tl.max(farthest, axis=0))


# kernel-lsp: workload x=f32[2048,32768]
def spread(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x: (rows, columns), contiguous."""
    rows, columns = x.shape
    mean, farthest = torch.empty(rows, device=x.device), torch.empty(rows, device=x.device)
    spread_kernel[(rows,)](x, mean, farthest, columns, BLOCK=1024)
    return mean, farthest
