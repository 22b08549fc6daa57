"""Matrix products by tiles."""

import torch
import triton
import triton.language as tl


@triton.jit
def exact_kernel(
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
        total += tl.dot(a, b, input_precision="ieee")
    tl.store(
        c_ptr + rows[:, None] * N + columns[None, :],
        total,
        mask=(rows[:, None] < M) & (columns[None, :] < N),
    )


# kernel-lsp: workload a=f32[2048,2048] b=f32[2048,2048]
def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device)
    grid = lambda meta: (triton.cdiv(M, meta["BLOCK_M"]), triton.cdiv(N, meta["BLOCK_N"]))  # noqa: E731
    exact_kernel[grid](a, b, c, M, N, K, BLOCK_M=64, BLOCK_N=64, BLOCK_K=16)
    return c


@triton.jit
def half_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr
):  # fmt: skip
    row_block = tl.program_id(0)
    column_block = tl.program_id(1)
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    a_ptrs = a_ptr + (rows % M)[:, None] * K + tl.arange(0, BLOCK_K)[None, :]
    b_ptrs = b_ptr + tl.arange(0, BLOCK_K)[:, None] * N + (columns % N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        left = K - start
        a = tl.load(a_ptrs, mask=tl.arange(0, BLOCK_K)[None, :] < left, other=0.0)
        b = tl.load(b_ptrs, mask=tl.arange(0, BLOCK_K)[:, None] < left, other=0.0)
        total = tl.dot(a, b, total)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * N
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total.to(tl.bfloat16), mask=mask)


# kernel-lsp: workload a=bf16[8192,4096] b=bf16[4096,8192]
def half(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = lambda meta: (triton.cdiv(M, meta["BLOCK_M"]), triton.cdiv(N, meta["BLOCK_N"]))  # noqa: E731
    half_kernel[grid](a, b, c, M, N, K, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32)
    return c


@triton.jit
def batched_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        left = (rows[:, None] < M) & (inner[None, :] < K)
        right = (inner[:, None] < K) & (columns[None, :] < N)
        a = tl.load(
            a_ptr + batch * M * K + rows[:, None] * K + inner[None, :], mask=left, other=0.0
        )
        b = tl.load(
            b_ptr + batch * K * N + inner[:, None] * N + columns[None, :], mask=right, other=0.0
        )
        total = tl.dot(a, b, total)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(
        c_ptr + batch * M * N + rows[:, None] * N + columns[None, :],
        total.to(tl.float16),
        mask=mask,
    )


# kernel-lsp: workload a=f16[64,1024,128] b=f16[64,128,1024]
def batched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    batch, M, K = a.shape
    N = b.shape[2]
    c = torch.empty((batch, M, N), device=a.device, dtype=a.dtype)
    grid = lambda meta: (triton.cdiv(M, meta["BLOCK_M"]), triton.cdiv(N, meta["BLOCK_N"]), batch)  # noqa: E731
    batched_kernel[grid](a, b, c, M, N, K, BLOCK_M=32, BLOCK_N=32, BLOCK_K=32)
    return c


@triton.jit
def matvec_kernel(
    a_ptr, x_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    total = tl.zeros((BLOCK_R,), dtype=tl.float32)
    for start in range(0, columns, BLOCK_C):
        column = start + tl.arange(0, BLOCK_C)
        mask = (row[:, None] < rows) & (column[None, :] < columns)
        a = tl.load(
            a_ptr + row[:, None].to(tl.int64) * columns + column[None, :], mask=mask, other=0.0
        )
        x = tl.load(x_ptr + column, mask=column < columns, other=0.0)
        total += tl.sum(a.to(tl.float32) * x[None, :].to(tl.float32), axis=1)
    tl.store(out_ptr + row, total.to(tl.bfloat16), mask=row < rows)


# kernel-lsp: workload a=bf16[16384,8192] x=bf16[8192]
def matvec(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    rows, columns = a.shape
    out = torch.empty(rows, device=a.device, dtype=a.dtype)
    grid = lambda meta: (triton.cdiv(rows, meta["BLOCK_R"]),)  # noqa: E731
    matvec_kernel[grid](a, x, out, rows, columns, BLOCK_R=32, BLOCK_C=64)
    return out
