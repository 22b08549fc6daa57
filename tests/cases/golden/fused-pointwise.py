"""Bias, tanh-GELU by hand and a scale."""

import torch
import torch.nn as nn
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
def _fused_add_pow_mul_tanh_kernel(
    hidden_ptr, bias_ptr, out_ptr, n_elements, n_cols: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    """Each program handles BLOCK_SIZE consecutive elements."""
    start = tl.program_id(0).to(tl.int64) * BLOCK_SIZE  # int64: offsets can pass 2**31
    offs = start + tl.arange(0, BLOCK_SIZE)
    mask = offs < n_elements  # the last block reaches past the end
    # Broadcasts are resolved in 32 bits: 64-bit division is many times slower.
    index = (start % n_cols).to(tl.int32) + tl.arange(0, BLOCK_SIZE)
    hidden = tl.load(hidden_ptr + offs, mask=mask)
    bias = tl.load(bias_ptr + index % n_cols, mask=mask)
    shifted = hidden + bias
    inner = (shifted + ((shifted * shifted * shifted) * 0.044715)) * 0.7978845608
    scaled = (shifted * 0.5) * (_tanh(inner) + 1.0)
    tl.store(out_ptr + offs, scaled, mask=mask)


def fused_add_pow_mul_tanh(hidden, bias):
    """Add, pow, …, add and mul in one pass.

    hidden, out: float32 (n_rows, n_cols)
    bias: float32 (n_cols,)
    """
    hidden, bias = hidden.contiguous(), bias.contiguous()
    out = torch.empty_like(hidden, dtype=torch.float32)
    n_cols = hidden.shape[1]
    n_elements = out.numel()
    if n_elements > 0:  # a grid of zero programs cannot be launched
        grid = ((n_elements + 1023) // 1024,)
        _fused_add_pow_mul_tanh_kernel[grid](
            hidden, bias, out, n_elements, n_cols, BLOCK_SIZE=1024, num_warps=4,
        )
    return out


# kernel-lsp: workload hidden=f32[8192,3072]
class Tail(nn.Module):
    def __init__(self, size=3072):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))

    def _forward_eager(self, hidden):
        shifted = hidden + self.bias
        inner = 0.7978845608 * (shifted + 0.044715 * shifted**3)
        return 0.5 * shifted * (1 + torch.tanh(inner))

    def forward(self, hidden):
        # Verified on cuda for hidden: float32 (8192, 3072).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            hidden.is_cuda
            and hidden.dtype == torch.float32
            and hidden.shape[1:] == (3072,)
            and not torch.is_autocast_enabled("cuda")
            and (bias := self.bias).dtype == torch.float32
            and hidden.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and hidden.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (hidden.requires_grad or bias.requires_grad))
        ):
            return self._forward_eager(hidden)
        return fused_add_pow_mul_tanh(hidden, bias)
