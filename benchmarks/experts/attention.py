"""Causal attention in one pass over the keys: running maximum and sum, only the blocks that
count."""

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 128, "BLOCK_N": 64}, num_warps=8, num_stages=3),
        triton.Config({"BLOCK_M": 128, "BLOCK_N": 128}, num_warps=8, num_stages=2),
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 64}, num_warps=4, num_stages=3),
    ],
    key=["length"],
)
@triton.jit
def attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    length,
    scale,
    HEAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64) * length * HEAD
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    inner = tl.arange(0, HEAD)
    q = tl.load(
        q_ptr + head + rows[:, None] * HEAD + inner[None, :], mask=rows[:, None] < length, other=0.0
    )
    largest = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    gathered = tl.zeros((BLOCK_M, HEAD), dtype=tl.float32)
    for start in range(0, tl.minimum((block + 1) * BLOCK_M, length), BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        known = columns < length
        k = tl.load(
            k_ptr + head + columns[None, :] * HEAD + inner[:, None], mask=known[None, :], other=0.0
        )
        scores = tl.dot(q, k) * (scale * 1.4426950408889634)
        scores = tl.where((columns[None, :] <= rows[:, None]) & known[None, :], scores, -1.0e30)
        now = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - now[:, None])
        rescale = tl.exp2(largest - now)
        total = total * rescale + tl.sum(weights, axis=1)
        gathered = gathered * rescale[:, None]
        v = tl.load(
            v_ptr + head + columns[:, None] * HEAD + inner[None, :], mask=known[:, None], other=0.0
        )
        gathered = tl.dot(weights.to(v.dtype), v, gathered)
        largest = now
    gathered = gathered / total[:, None]
    tl.store(
        out_ptr + head + rows[:, None] * HEAD + inner[None, :],
        gathered.to(tl.float16),
        mask=rows[:, None] < length,
    )


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    batch, heads, length, width = q.shape
    out = torch.empty_like(q)
    grid = lambda meta: (triton.cdiv(length, meta["BLOCK_M"]), batch * heads)  # noqa: E731
    attention_kernel[grid](q, k, v, out, length, width**-0.5, HEAD=width)
    return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(2, 16, 4096, 64, dtype=torch.float16) for _ in range(3)]
