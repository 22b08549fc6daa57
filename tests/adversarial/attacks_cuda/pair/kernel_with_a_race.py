"""Lets all programs write to the same place without waiting for each other."""

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
    r = tl.maximum(x * y, 0.0) + 1.0
    tl.store(out_ptr + offs, r, mask=mask)
    tl.store(out_ptr + tl.arange(0, BLOCK), r, mask=mask & (tl.program_id(0) < 64))


class ModelNew(nn.Module):
    def forward(self, x, y):
        x, y = x.contiguous(), y.contiguous()
        out = torch.empty_like(x)
        fused[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
        return out
