"""Residual, RMS norm and a gate."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def _fused_add_layer_norm_silu_mul_kernel(
    hidden_ptr, residual_ptr, weight_ptr, bias_ptr, gain_ptr, out_ptr, n_cols, BLOCK_SIZE: tl.constexpr,
):
    """Each program handles one row."""
    row = tl.program_id(0).to(tl.int64)  # int64: row * n_cols can pass 2**31
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols  # BLOCK_SIZE is rounded up to a power of two
    hidden = tl.load(hidden_ptr + row * n_cols + cols, mask=mask)
    residual = tl.load(residual_ptr + row * n_cols + cols, mask=mask)
    total = hidden + residual
    mean = tl.sum(tl.where(mask, total, 0.0), axis=0) / n_cols
    centered = total - mean
    m2 = tl.sum(tl.where(mask, centered * centered, 0.0), axis=0)
    var = m2 / n_cols
    var_eps = var + 1e-05
    rstd = 1.0 / tl.sqrt(var_eps)
    normed = centered * rstd
    weight = tl.load(weight_ptr + cols, mask=mask)
    scaled = normed * weight
    bias = tl.load(bias_ptr + cols, mask=mask)
    layer_norm = scaled + bias
    gain = tl.load(gain_ptr + cols, mask=mask)
    scaled_2 = (layer_norm * tl.sigmoid(layer_norm)) * gain
    tl.store(out_ptr + row * n_cols + cols, scaled_2, mask=mask)


def fused_add_layer_norm_silu_mul(hidden, residual, weight, bias, gain):
    """Add, layer_norm, silu and mul in one pass.

    hidden, residual, out: float32 (n_rows, n_cols)
    weight, bias, gain: float32 (n_cols,)
    """
    hidden = hidden.contiguous()
    residual = residual.contiguous()
    weight = weight.contiguous()
    bias = bias.contiguous()
    gain = gain.contiguous()
    n_rows = hidden.shape[0]
    n_cols = hidden.shape[1]
    out = torch.empty_like(hidden, dtype=torch.float32)
    if n_rows > 0:  # a grid of zero programs cannot be launched
        _fused_add_layer_norm_silu_mul_kernel[(n_rows,)](
            hidden, residual, weight, bias, gain, out, n_cols,
            BLOCK_SIZE=1 << max(n_cols - 1, 0).bit_length(), num_warps=16,
        )
    return out


# kernel-lsp: workload hidden=f32[4096,4096] residual=f32[4096,4096]
class GatedNorm(nn.Module):
    def __init__(self, size=4096):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.gain = nn.Parameter(torch.ones(size))

    def _forward_eager(self, hidden, residual):
        total = hidden + residual
        return F.silu(self.norm(total)) * self.gain

    def forward(self, hidden, residual):
        # Verified on cuda for hidden: float32 (4096, 4096); residual: float32 (4096, 4096).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            hidden.is_cuda
            and hidden.dtype == torch.float32
            and hidden.shape[1:] == (4096,)
            and residual.is_cuda
            and residual.dtype == torch.float32
            and residual.shape == (hidden.shape[0], 4096)
            and not torch.is_autocast_enabled("cuda")
            and type(norm := self.norm) is torch.nn.LayerNorm
            and norm.normalized_shape == (4096,)
            and not (norm._forward_hooks or norm._forward_pre_hooks)
            and norm.eps == 1e-05
            and (gain := self.gain).dtype == torch.float32
            and hidden.is_contiguous()
            and residual.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and hidden.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (hidden.requires_grad or residual.requires_grad
                or gain.requires_grad or any(p.requires_grad for p in self.parameters())))
        ):
            return self._forward_eager(hidden, residual)
        return fused_add_layer_norm_silu_mul(hidden, residual, norm.weight, norm.bias, gain)
