"""Softmax of rows that fit in no register file: maximum and sum in one pass, cached for the
second."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.multiple_of(row * columns, 16)
    largest = -float("inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        column = tl.max_contiguous(tl.multiple_of(start + tl.arange(0, BLOCK), BLOCK), BLOCK)
        x = tl.load(
            x_ptr + place + column,
            mask=column < columns,
            other=-float("inf"),
            eviction_policy="evict_last",
        ).to(tl.float32)
        now = tl.maximum(largest, tl.max(x, axis=0))
        weights = tl.exp2((x - now) * 1.4426950408889634)
        total = total * tl.exp2((largest - now) * 1.4426950408889634) + tl.sum(weights, axis=0)
        largest = now
    for start in range(0, columns, BLOCK):
        column = tl.max_contiguous(tl.multiple_of(start + tl.arange(0, BLOCK), BLOCK), BLOCK)
        x = tl.load(
            x_ptr + place + column,
            mask=column < columns,
            other=-float("inf"),
            eviction_policy="evict_first",
        ).to(tl.float32)
        weights = tl.exp2((x - largest) * 1.4426950408889634)
        tl.store(out_ptr + place + column, weights / total, mask=column < columns)


def softmax(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    rows, columns = x.shape
    out = torch.empty_like(x)
    softmax_kernel[(rows,)](x, out, columns, BLOCK=8192, num_warps=16, num_stages=2)
    return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(4096, 65536, dtype=torch.bfloat16)]
