"""A tuned activation whose list of configurations was written for another device."""

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 128}, num_warps=2),
        triton.Config({"BLOCK": 256}, num_warps=2),
        triton.Config({"BLOCK": 8192}, num_warps=2),
    ],
    key=["n_elements"],
)
@triton.jit
def squared_relu_kernel(x_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements  # the last block reaches past the end
    x = tl.maximum(tl.load(x_ptr + offsets, mask=mask), 0.0)
    tl.store(out_ptr + offsets, x * x, mask=mask)


# kernel-lsp: workload x=f32[256,8192]
def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """x: float32 (rows, columns), contiguous."""
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
    squared_relu_kernel[grid](x, out, x.numel())
    return out
