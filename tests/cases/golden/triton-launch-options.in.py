"""Softmax of long rows, launched with what Triton takes when nobody says anything."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(scores_ptr, out_ptr, n_columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_columns  # BLOCK is the next power of two
    scores = tl.load(scores_ptr + row * n_columns + columns, mask=mask, other=float("-inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    tl.store(out_ptr + row * n_columns + columns, weights / tl.sum(weights, axis=0), mask=mask)


# kernel-lsp: workload scores=f32[1024,16384]
def softmax(scores: torch.Tensor) -> torch.Tensor:
    """scores: float32 (n_rows, n_columns), contiguous."""
    n_rows, n_columns = scores.shape
    out = torch.empty_like(scores)
    softmax_kernel[(n_rows,)](scores, out, n_columns, BLOCK=triton.next_power_of_2(n_columns))
    return out
