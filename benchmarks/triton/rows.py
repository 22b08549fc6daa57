"""Kernels that reduce rows."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=float("-inf"))
    weights = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * columns + column, weights / tl.sum(weights, axis=0), mask=mask)


# kernel-lsp: workload x=f32[4096,16384]
def softmax(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    out = torch.empty_like(x)
    softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    return out


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
    tl.store(out_ptr + row, tl.sum(total, axis=0))


# kernel-lsp: workload x=f32[2048,32768]
def row_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0], device=x.device)
    row_sum_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=128)
    return out


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=mask).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / columns + eps)
    tl.store(out_ptr + row * columns + column, x * scale * weight, mask=mask)


# kernel-lsp: workload x=bf16[16384,4096] weight=bf16[4096]
def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    out = torch.empty_like(x)
    rms_norm_kernel[(rows,)](
        x, weight, out, columns, 1e-6, BLOCK=triton.next_power_of_2(columns), num_warps=1
    )
    return out


@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
    mean = tl.sum(total, axis=0) / columns
    square = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
        away = tl.where(column < columns, x - mean, 0.0)
        square += away * away
    scale = tl.rsqrt(tl.sum(square, axis=0) / columns + eps)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < columns
        x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0)
        weight = tl.load(weight_ptr + column, mask=mask)
        bias = tl.load(bias_ptr + column, mask=mask)
        tl.store(out_ptr + row * columns + column, (x - mean) * scale * weight + bias, mask=mask)


# kernel-lsp: workload x=f32[8192,2048] weight=f32[2048] bias=f32[2048]
def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    out = torch.empty_like(x)
    layer_norm_kernel[(rows,)](x, weight, bias, out, columns, 1e-5, BLOCK=128)
    return out


@triton.jit
def column_mean_kernel(x_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
    for start in range(0, rows, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        mask = (row[:, None] < rows) & (column[None, :] < columns)
        total += tl.load(x_ptr + row[:, None] * columns + column[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + column, tl.sum(total, axis=0) / rows, mask=column < columns)


# kernel-lsp: workload x=f32[8192,16384]
def column_mean(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    out = torch.empty(columns, device=x.device)
    grid = lambda meta: (triton.cdiv(columns, meta["BLOCK_C"]),)  # noqa: E731
    column_mean_kernel[grid](x, out, rows, columns, BLOCK_R=16, BLOCK_C=32)
    return out
