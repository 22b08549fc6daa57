"""Logarithms of a softmax, whose rows are read three times."""

import torch
import triton
import triton.language as tl


@triton.jit
def log_softmax_kernel(
    scores_ptr, out_ptr, n_classes, BLOCK: tl.constexpr,
    WHOLE_ROW: tl.constexpr = False,
):
    row = tl.program_id(0).to(tl.int64)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    if WHOLE_ROW:  # one block holds the row, so it is read once
        classes = tl.arange(0, BLOCK)
        mask = classes < n_classes  # the last piece may be shorter
        scores = tl.load(scores_ptr + row * n_classes + classes, mask=mask, other=float("-inf"))
        largest = tl.maximum(largest, scores)
        shift = tl.max(largest, axis=0)
        total = 0.0
        total += tl.sum(tl.exp(scores - shift), axis=0)
        scores = tl.where(mask, scores, 0.0)
        tl.store(out_ptr + row * n_classes + classes, scores - shift - tl.log(total), mask=mask)
    else:
        for start in range(0, n_classes, BLOCK):
            classes = start + tl.arange(0, BLOCK)
            mask = classes < n_classes  # the last piece may be shorter
            scores = tl.load(scores_ptr + row * n_classes + classes, mask=mask, other=float("-inf"))
            largest = tl.maximum(largest, scores)
        shift = tl.max(largest, axis=0)
        total = 0.0
        for start in range(0, n_classes, BLOCK):
            classes = start + tl.arange(0, BLOCK)
            mask = classes < n_classes  # the last piece may be shorter
            scores = tl.load(scores_ptr + row * n_classes + classes, mask=mask, other=float("-inf"))
            total += tl.sum(tl.exp(scores - shift), axis=0)
        for start in range(0, n_classes, BLOCK):
            classes = start + tl.arange(0, BLOCK)
            mask = classes < n_classes  # the last piece may be shorter
            scores = tl.load(scores_ptr + row * n_classes + classes, mask=mask, other=0.0)
            tl.store(out_ptr + row * n_classes + classes, scores - shift - tl.log(total), mask=mask)


# kernel-lsp: workload scores=f32[4096,8000]
def log_softmax(scores: torch.Tensor) -> torch.Tensor:
    """scores: float32 (n_rows, n_classes), contiguous."""
    n_rows, n_classes = scores.shape
    out = torch.empty_like(scores)
    whole_row = 0 < n_classes <= 16384  # what one block holds
    log_softmax_kernel[(n_rows,)](
        scores, out, n_classes,
        BLOCK=triton.next_power_of_2(n_classes) if whole_row else 512,
        WHOLE_ROW=whole_row,
        num_warps=16 if whole_row else 4,
    )
    return out
