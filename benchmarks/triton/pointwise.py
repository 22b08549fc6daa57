"""Elementwise kernels: one number in, one number out."""

import torch
import triton
import triton.language as tl


@triton.jit
def residual_kernel(x_ptr, skip_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    skip = tl.load(skip_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + skip, mask=mask)


# kernel-lsp: workload x=f32[4096,4096] skip=f32[4096,4096]
def residual(x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    residual_kernel[(triton.cdiv(x.numel(), 64),)](x, skip, out, x.numel(), BLOCK=64)
    return out


@triton.jit
def gated_kernel(gate_ptr, value_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    gate = tl.load(gate_ptr + offsets, mask=mask).to(tl.float32)
    value = tl.load(value_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, gate * tl.sigmoid(gate) * value, mask=mask)


# kernel-lsp: workload gate=bf16[8192,5632] value=bf16[8192,5632]
def gated(gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(gate)
    n_elements = gate.numel()
    gated_kernel[(triton.cdiv(n_elements, 256),)](gate, value, out, n_elements, BLOCK=256)
    return out


@triton.jit
def decay_kernel(x_ptr, n_elements, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


# kernel-lsp: workload x=f32[2048,4096]
def decay(x: torch.Tensor, factor: float = 0.99) -> None:
    decay_kernel[(triton.cdiv(x.numel(), 128),)](x, x.numel(), factor, BLOCK=128)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=1), triton.Config({"BLOCK": 128}, num_warps=2)],
    key=["n_elements"],
)
@triton.jit
def squared_relu_kernel(x_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.maximum(tl.load(x_ptr + offsets, mask=mask), 0.0)
    tl.store(out_ptr + offsets, x * x, mask=mask)


# kernel-lsp: workload x=f32[4096,8192]
def squared_relu(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
    squared_relu_kernel[grid](x, out, x.numel())
    return out


@triton.jit
def transpose_kernel(x_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (row[:, None] < rows) & (column[None, :] < columns)
    x = tl.load(x_ptr + row[:, None] * columns + column[None, :], mask=mask)
    tl.store(out_ptr + column[None, :] * rows + row[:, None], x, mask=mask)


# kernel-lsp: workload x=f32[8192,4096]
def transpose(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    out = torch.empty((columns, rows), device=x.device, dtype=x.dtype)
    grid = lambda meta: (triton.cdiv(rows, meta["BLOCK_R"]), triton.cdiv(columns, meta["BLOCK_C"]))  # noqa: E731
    transpose_kernel[grid](x, out, rows, columns, BLOCK_R=16, BLOCK_C=16)
    return out


@triton.jit
def dropout_kernel(x_ptr, out_ptr, n_elements, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.rand(seed, offsets) > p
    tl.store(out_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=mask)


# kernel-lsp: workload x=bf16[8192,8192]
def dropout(x: torch.Tensor, p: float = 0.1, seed: int = 17) -> torch.Tensor:
    out = torch.empty_like(x)
    dropout_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), p, seed, BLOCK=128)
    return out
