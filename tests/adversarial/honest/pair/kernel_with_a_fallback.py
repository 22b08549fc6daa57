"""Launches its kernel for contiguous inputs and falls back elsewhere."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def fused(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(
        out_ptr + offs, tl.maximum(x * y, 0.0, propagate_nan=tl.PropagateNan.ALL) + 1.0, mask=mask
    )


class ModelNew(nn.Module):
    def forward(self, x, y):
        if not (x.is_contiguous() and y.is_contiguous() and x.shape == y.shape):
            return torch.relu(x * y) + 1
        out = torch.empty_like(x)
        fused[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
        return out
