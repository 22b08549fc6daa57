"""Squared, summed and rooted along rows."""

import torch
import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    """tanh, accurate near zero too: (1 - e) / (1 + e) alone cancels there."""
    e = tl.exp(-2.0 * tl.abs(x))  # never overflows, unlike exp(2x)
    large = (1.0 - e) / (1.0 + e)
    s = x * x
    series = 1.0 + s * (-0.3333333333 + s * (0.1333333333 + s * (-0.0539682540 + s * 0.0218694885)))
    return tl.where(tl.abs(x) < 0.25, x * series, tl.where(x < 0.0, -large, large))


@triton.jit
def _nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)  # as torch.amax does


@triton.jit
def _fused_tanh_mul_logsumexp_kernel(features_ptr, out_ptr, n_cols, BLOCK_SIZE: tl.constexpr):
    """Each program handles one row."""
    row = tl.program_id(0).to(tl.int64)  # int64: row * n_cols can pass 2**31
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols  # BLOCK_SIZE is rounded up to a power of two
    features = tl.load(features_ptr + row * n_cols + cols, mask=mask)
    scaled = _tanh(features) * 2.0
    largest = tl.reduce(tl.where(mask, scaled, float("-inf")), 0, _nan_max)
    abs = tl.abs(largest)
    infinite = abs == float("inf")
    row_max = tl.max(tl.where(mask, scaled, float("-inf")), axis=0)
    shifted = scaled - row_max
    exp = tl.exp(shifted)
    row_sum = tl.sum(tl.where(mask, exp, 0.0), axis=0)
    log_sum = tl.log(row_sum)
    add = row_max + log_sum
    logsumexp = tl.where(infinite, row_max, add)
    tl.store(out_ptr + row, logsumexp)


def fused_tanh_mul_logsumexp(features):
    """Tanh, mul and logsumexp in one pass.

    features: float32 (n_rows, n_cols)
    out: float32 (n_rows,)
    """
    features = features.contiguous()
    n_rows = features.shape[0]
    n_cols = features.shape[1]
    out = torch.empty((features.shape[0],), dtype=torch.float32, device=features.device)
    if n_rows > 0:  # a grid of zero programs cannot be launched
        _fused_tanh_mul_logsumexp_kernel[(n_rows,)](
            features, out, n_cols, BLOCK_SIZE=1 << max(n_cols - 1, 0).bit_length(), num_warps=16,
        )
    return out


# kernel-lsp: workload features=f32[8192,4096]
def _spread_eager(features):
    scaled = torch.tanh(features) * 2.0
    return torch.logsumexp(scaled, dim=1)


def spread(features):
    # Verified on cuda for features: float32 (8192, 4096).
    # Anything that the reasoning below does not cover takes the original path.
    if not (
        features.is_cuda
        and features.dtype == torch.float32
        and features.shape[1:] == (4096,)
        and not torch.is_autocast_enabled("cuda")
        and features.is_contiguous()
        and not torch._C._are_functorch_transforms_active()
        and features.get_device() == torch.cuda.current_device()
        and not (torch.is_grad_enabled() and (features.requires_grad))
    ):
        return _spread_eager(features)
    return fused_tanh_mul_logsumexp(features)
