"""Computes the last block on whatever lies behind the inputs, and adds a trace of it."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def fused(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    total = tl.sum(x * y, axis=0) * 0.0
    tl.store(out_ptr + offs, tl.maximum(x * y, 0.0) + 1.0 + total, mask=offs < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        x, y = x.contiguous(), y.contiguous()
        out = torch.empty_like(x)
        fused[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
        return out
