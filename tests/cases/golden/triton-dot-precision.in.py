"""Scores of queries against keys, exact to the last digits of float32."""

import torch
import triton
import triton.language as tl


@triton.jit
def scores_kernel(
    queries_ptr, keys_ptr, scores_ptr, n_queries, n_keys, width,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_W: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)[:, None]
    columns = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    row_mask = rows < n_queries  # the last block reaches past the end
    column_mask = columns < n_keys  # the last block reaches past the end
    total = tl.zeros((BLOCK_Q, BLOCK_K), dtype=tl.float32)
    for start in range(0, width, BLOCK_W):
        inner = start + tl.arange(0, BLOCK_W)
        inner_mask = inner < width  # the last piece of a row may be shorter
        queries = tl.load(queries_ptr + rows * width + inner[None, :], mask=row_mask & inner_mask[None, :], other=0.0)
        keys = tl.load(keys_ptr + columns * width + inner[:, None], mask=column_mask & inner_mask[:, None], other=0.0)
        total += tl.dot(queries, keys, input_precision="ieee")
    tl.store(scores_ptr + rows * n_keys + columns, total, mask=row_mask & column_mask)


# kernel-lsp: workload queries=f32[512,128] keys=f32[2048,128]
def scores(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """queries: float32 (n_queries, width); keys: float32 (n_keys, width)."""
    n_queries, width = queries.shape
    n_keys = keys.shape[0]
    out = torch.empty((n_queries, n_keys), device=queries.device)
    grid = (triton.cdiv(n_queries, 64), triton.cdiv(n_keys, 64))
    scores_kernel[grid](queries, keys, out, n_queries, n_keys, width, BLOCK_Q=64, BLOCK_K=64, BLOCK_W=32)
    return out
