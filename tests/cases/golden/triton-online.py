"""A softmax over rows too long for registers."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(scores_ptr, out_ptr, n_tokens, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    # Each lane has the largest of its own numbers.
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n_tokens, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        mask = tokens < n_tokens  # the last piece may be shorter
        scores = tl.load(scores_ptr + row * n_tokens + tokens, mask=mask, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(largest, scores)
        # While there is nothing but -inf, -inf - -inf must not be computed.
        origin = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * tl.exp(largest - origin) + tl.exp(scores - origin)
        largest = larger
    shift = tl.max(largest, axis=0)
    # NaN where the row is -inf alone.
    total *= tl.exp(largest - shift)
    scale = 1.0 / tl.sum(total, axis=0)
    for start in range(0, n_tokens, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        mask = tokens < n_tokens  # the last piece may be shorter
        scores = tl.load(scores_ptr + row * n_tokens + tokens, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * n_tokens + tokens, tl.exp(scores - shift) * scale, mask=mask)


# kernel-lsp: workload scores=bf16[2048,128256]
def softmax(scores: torch.Tensor) -> torch.Tensor:
    """scores: bfloat16 or float32 (n_rows, n_tokens), contiguous."""
    n_rows, n_tokens = scores.shape
    out = torch.empty_like(scores)
    softmax_kernel[(n_rows,)](scores, out, n_tokens, BLOCK=2048)
    return out
