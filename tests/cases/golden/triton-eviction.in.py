"""Root mean square normalization of rows that are too long for one block."""

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    square = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * width + columns, mask=columns < width, other=0.0).to(tl.float32)
        square += x * x
    scale = tl.rsqrt(tl.sum(square, axis=0) / width + 1e-6)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < width  # the last piece of a row may be shorter
        x = tl.load(x_ptr + row * width + columns, mask=mask).to(tl.float32)
        weight = tl.load(weight_ptr + columns, mask=mask)
        tl.store(out_ptr + row * width + columns, x * scale * weight, mask=mask)


# kernel-lsp: workload x=bf16[4096,16384] weight=bf16[16384]
def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x: (rows, width), contiguous; weight: (width,)."""
    rows, width = x.shape
    out = torch.empty_like(x)
    rms_norm_kernel[(rows,)](x, weight, out, width, BLOCK=2048)
    return out
