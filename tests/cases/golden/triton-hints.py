"""Softmax over classes."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, x_stride, out_stride, columns, BLOCK: tl.constexpr,
    # What x_stride is a multiple of.
    X_STRIDE_MULTIPLE: tl.constexpr = 1,
    # What out_stride is a multiple of.
    OUT_STRIDE_MULTIPLE: tl.constexpr = 1,
    # What columns is a multiple of.
    COLUMNS_MULTIPLE: tl.constexpr = 1
):
    """One row a program."""
    # The same numbers, written so that the compiler sees what they are multiples of.
    x_stride = x_stride // X_STRIDE_MULTIPLE * X_STRIDE_MULTIPLE
    out_stride = out_stride // OUT_STRIDE_MULTIPLE * OUT_STRIDE_MULTIPLE
    columns = columns // COLUMNS_MULTIPLE * COLUMNS_MULTIPLE
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns  # the block is the next power of two
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=-float("inf")).to(tl.float32)
    weights = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * out_stride + column, weights / tl.sum(weights, axis=0), mask=mask)


# kernel-lsp: workload x=bf16[4096,1000]
def softmax(x: torch.Tensor) -> torch.Tensor:
    """x: (rows, columns), rows of neighboring numbers."""
    out = torch.empty_like(x)
    columns = x.shape[1]
    block = triton.next_power_of_2(columns)
    softmax_kernel[(x.shape[0],)](
        x, out, x.stride(0), out.stride(0), columns,
        BLOCK=block,
        X_STRIDE_MULTIPLE=8 if x.stride(0) % 8 == 0 else 1,
        OUT_STRIDE_MULTIPLE=8 if out.stride(0) % 8 == 0 else 1,
        COLUMNS_MULTIPLE=8 if columns % 8 == 0 else 1,
    )
    return out
