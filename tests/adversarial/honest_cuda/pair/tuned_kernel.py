"""Lets Triton choose between block sizes."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 256}, num_warps=2),
        triton.Config({"BLOCK": 1024}, num_warps=4),
    ],
    key=["n"],
)
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
        x, y = x.contiguous(), y.contiguous()
        out, n = torch.empty_like(x), x.numel()
        fused[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n)
        return out
