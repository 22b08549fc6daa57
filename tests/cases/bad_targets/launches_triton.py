# expect: refused: Model launches a Triton kernel itself at `double_kernel[(4,)](x, out, x.numel(), BLOCK=32)`, which a graph of torch cannot hold
"""Its forward launches a kernel, which is a target of its own."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, 2.0 * tl.load(x_ptr + offsets, mask=mask), mask=mask)


class Model(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        double_kernel[(4,)](x, out, x.numel(), BLOCK=32)
        return out


def get_inputs():
    return [torch.randn(100)]
