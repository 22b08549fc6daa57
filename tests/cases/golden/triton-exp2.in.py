"""Attention of one head, without a mask of its own."""

import torch
import triton
import triton.language as tl


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, length, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask = rows < length  # the last block reaches past the end
    inner = tl.arange(0, WIDTH)
    q = tl.load(q_ptr + rows[:, None] * WIDTH + inner[None, :], mask=row_mask[:, None], other=0.0)
    highest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    mixed = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)
    for start in range(0, length, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        known = columns < length  # the last block reaches past the end
        places = columns[:, None] * WIDTH + inner[None, :]
        k = tl.load(k_ptr + places, mask=known[:, None], other=0.0)
        v = tl.load(v_ptr + places, mask=known[:, None], other=0.0)
        scores = tl.where(known[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        weights = tl.exp(scores - higher[:, None])
        shrink = tl.exp(highest - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        highest = higher
    tl.store(out_ptr + rows[:, None] * WIDTH + inner[None, :], mixed / total[:, None], mask=row_mask[:, None])


# kernel-lsp: workload q=f16[2048,64] k=f16[2048,64] v=f16[2048,64]
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q, k, v: (length, width), contiguous."""
    length, width = q.shape
    out = torch.empty_like(q)
    grid = (triton.cdiv(length, 32),)
    attention_kernel[grid](q, k, v, out, length, width**-0.5, BLOCK_M=32, BLOCK_N=32, WIDTH=width)
    return out
