"""An RMS norm with a program for each row."""

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, width, eps, BLOCK: tl.constexpr):
    """Each program handles one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width  # BLOCK is a power of two
    # The same for all rows.
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    x_ptr += row * width
    x = tl.load(x_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    tl.store(out_ptr + row * width + columns, x * scale * weight, mask=mask)


# kernel-lsp: workload x=bf16[65536,1024] weight=bf16[1024]
def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x: (n_rows, width), contiguous; weight: (width,)."""
    out = torch.empty_like(x)
    grid = (x.shape[0],)
    rms_norm_kernel[grid](x, weight, out, x.shape[1], 1e-6, BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
