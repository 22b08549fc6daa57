"""Softmax of scaled scores with an additive mask."""

import torch
import triton
import triton.language as tl


@triton.jit
def _fused_mul_add_softmax_kernel(scores_ptr, bias_ptr, out_ptr, n_cols, BLOCK_SIZE: tl.constexpr):
    """Each program handles one row."""
    row = tl.program_id(0).to(tl.int64)  # int64: row * n_cols can pass 2**31
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols  # BLOCK_SIZE is rounded up to a power of two
    scores = tl.load(scores_ptr + row * n_cols + cols, mask=mask)
    bias = tl.load(bias_ptr + cols, mask=mask)
    shifted = (scores * 0.125) + bias
    row_max = tl.max(tl.where(mask, shifted, float("-inf")), axis=0)
    shifted_2 = shifted - row_max
    exp = tl.exp(shifted_2)
    row_sum = tl.sum(tl.where(mask, exp, 0.0), axis=0)
    weights = exp / row_sum
    tl.store(out_ptr + row * n_cols + cols, weights, mask=mask)


def fused_mul_add_softmax(scores, bias):
    """Mul, add and softmax in one pass.

    scores, out: float32 (n_rows, n_cols)
    bias: float32 (n_cols,)
    """
    scores, bias = scores.contiguous(), bias.contiguous()
    n_rows = scores.shape[0]
    n_cols = scores.shape[1]
    out = torch.empty_like(scores, dtype=torch.float32)
    if n_rows > 0:  # a grid of zero programs cannot be launched
        _fused_mul_add_softmax_kernel[(n_rows,)](
            scores, bias, out, n_cols, BLOCK_SIZE=1 << max(n_cols - 1, 0).bit_length(), num_warps=8,
            enable_fp_fusion=False,
        )
    return out


# kernel-lsp: workload scores=f32[8192,2000] bias=f32[2000]
def _attention_weights_eager(scores, bias):
    shifted = scores * 0.125 + bias
    return torch.softmax(shifted, dim=-1)


def attention_weights(scores, bias):
    # Verified on cuda for scores: float32 (8192, 2000); bias: float32 (2000,).
    # Anything that the reasoning below does not cover takes the original path.
    if not (
        scores.is_cuda
        and scores.dtype == torch.float32
        and scores.shape[1:] == (2000,)
        and bias.is_cuda
        and bias.dtype == torch.float32
        and bias.shape == (2000,)
        and not torch.is_autocast_enabled("cuda")
        and scores.is_contiguous()
        and bias.is_contiguous()
        and not torch._C._are_functorch_transforms_active()
        and scores.get_device() == torch.cuda.current_device()
        and not (torch.is_grad_enabled() and (scores.requires_grad or bias.requires_grad))
    ):
        return _attention_weights_eager(scores, bias)
    return fused_mul_add_softmax(scores, bias)
