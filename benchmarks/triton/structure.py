"""Kernels whose structure is what costs them: rows read again and again, launches apart, few
programs."""

import torch
import triton
import triton.language as tl


@triton.jit
def three_pass_softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=float("-inf"))
        largest = tl.maximum(largest, x.to(tl.float32))
    shift = tl.max(largest, axis=0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=float("-inf"))
        total += tl.exp(x.to(tl.float32) - shift)
    scale = 1.0 / tl.sum(total, axis=0)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=float("-inf"))
        weight = tl.exp(x.to(tl.float32) - shift) * scale
        tl.store(out_ptr + row * columns + column, weight, mask=column < columns)


# kernel-lsp: workload x=bf16[8192,12000]
def three_pass_softmax(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    three_pass_softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=1024)
    return out


@triton.jit
def logsumexp_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    largest = -float("inf")
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(x, axis=0))
    total = 0.0
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=float("-inf"))
        total += tl.sum(tl.exp(x - largest), axis=0)
    tl.store(out_ptr + row, largest + tl.log(total))


# kernel-lsp: workload x=f32[4096,128256]
def logsumexp(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty(x.shape[0], device=x.device)
    logsumexp_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=4096)
    return out


@triton.jit
def standardize_kernel(x_ptr, out_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = 0.0
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
        total += tl.sum(x, axis=0)
    mean = total / columns
    square = 0.0
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
        away = tl.where(column < columns, x - mean, 0.0)
        square += tl.sum(away * away, axis=0)
    scale = tl.rsqrt(square / columns + eps)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
        tl.store(out_ptr + row * columns + column, (x - mean) * scale, mask=column < columns)


# kernel-lsp: workload x=f32[512,1000000]
def standardize(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    standardize_kernel[(x.shape[0],)](x, out, x.shape[1], 1e-6, BLOCK=4096)
    return out


@triton.jit
def short_norm_kernel(x_ptr, weight_ptr, out_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / columns + eps)
    tl.store(out_ptr + row * columns + column, x * scale * weight, mask=mask)


# kernel-lsp: workload x=bf16[262144,768] weight=bf16[768]
def short_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    weight = weight.contiguous()
    out = torch.empty_like(x)
    short_norm_kernel[(x.shape[0],)](
        x, weight, out, x.shape[1], 1e-6, BLOCK=triton.next_power_of_2(x.shape[1])
    )
    return out


@triton.jit
def add_bias_kernel(x_ptr, bias_ptr, sum_ptr, n_elements, columns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(sum_ptr + offsets, x + tl.load(bias_ptr + offsets % columns, mask=mask), mask=mask)


@triton.jit
def gelu_kernel(x_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask=mask)


# kernel-lsp: workload x=bf16[8192,8192] bias=bf16[8192]
def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    bias = bias.contiguous()
    total = torch.empty_like(x)
    out = torch.empty_like(x)
    n_elements = x.numel()
    grid = (triton.cdiv(n_elements, 1024),)
    add_bias_kernel[grid](x, bias, total, n_elements, x.shape[1], BLOCK=1024)
    gelu_kernel[grid](total, out, n_elements, BLOCK=1024)
    return out


@triton.jit
def narrow_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a = tl.load(
            a_ptr + rows[:, None] * K + inner[None, :],
            mask=(rows[:, None] < M) & (inner[None, :] < K),
            other=0.0,
        )
        b = tl.load(
            b_ptr + inner[:, None] * N + columns[None, :],
            mask=(inner[:, None] < K) & (columns[None, :] < N),
            other=0.0,
        )
        total += tl.dot(a, b)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(
        c_ptr + rows[:, None] * N + columns[None, :], total.to(c_ptr.dtype.element_ty), mask=mask
    )


# kernel-lsp: workload a=bf16[256,65536] b=bf16[65536,256]
def narrow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a = a.contiguous()
    b = b.contiguous()
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(M, 64), triton.cdiv(N, 64))
    narrow_kernel[grid](a, b, c, M, N, K, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64)
    return c
