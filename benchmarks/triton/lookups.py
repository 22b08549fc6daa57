"""Kernels whose places or results are whole numbers: gathers, counts, quantization, a loss over
classes."""

import torch
import triton
import triton.language as tl


@triton.jit
def embedding_kernel(ids_ptr, table_ptr, out_ptr, width, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(ids_ptr + token)
    x = tl.load(table_ptr + row * width + column, mask=column < width)
    tl.store(out_ptr + token.to(tl.int64) * width + column, x, mask=column < width)


# kernel-lsp: workload ids=i64[16384]<32000 table=bf16[32000,4096]
def embedding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    width = table.shape[1]
    out = torch.empty((ids.numel(), width), device=table.device, dtype=table.dtype)
    grid = lambda meta: (ids.numel(), triton.cdiv(width, meta["BLOCK"]))  # noqa: E731
    embedding_kernel[grid](ids, table, out, width, BLOCK=128)
    return out


@triton.jit
def histogram_kernel(x_ptr, counts_ptr, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    value = tl.load(x_ptr + offsets, mask=mask, other=0)
    tl.atomic_add(counts_ptr + value, 1, mask=mask)


# kernel-lsp: workload x=i32[16777216]<4096
def histogram(x: torch.Tensor) -> torch.Tensor:
    counts = torch.zeros(4096, device=x.device, dtype=torch.int32)
    histogram_kernel[(triton.cdiv(x.numel(), 128),)](x, counts, x.numel(), BLOCK=128)
    return counts


@triton.jit
def quantize_kernel(x_ptr, out_ptr, scale_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    highest = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0).to(tl.float32)
        highest = tl.maximum(highest, tl.abs(x))
    scale = tl.maximum(tl.max(highest, axis=0), 1e-6) / 448.0
    tl.store(scale_ptr + row, scale)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * columns + column, x / scale, mask=column < columns)


# kernel-lsp: workload x=bf16[16384,4096]
def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = x.shape
    out = torch.empty_like(x)
    scale = torch.empty(rows, device=x.device)
    quantize_kernel[(rows,)](x, out, scale, columns, BLOCK=256)
    return out, scale


@triton.jit
def cross_entropy_kernel(logits_ptr, labels_ptr, loss_ptr, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    highest = float("-inf")
    for start in range(0, classes, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * classes + column, mask=column < classes, other=float("-inf"))
        highest = tl.maximum(highest, tl.max(x.to(tl.float32), axis=0))
    total = 0.0
    for start in range(0, classes, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * classes + column, mask=column < classes, other=float("-inf"))
        total += tl.sum(tl.exp(x.to(tl.float32) - highest), axis=0)
    wanted = tl.load(logits_ptr + row * classes + tl.load(labels_ptr + row)).to(tl.float32)
    tl.store(loss_ptr + row, tl.log(total) + highest - wanted)


# kernel-lsp: workload logits=bf16[8192,32000] labels=i64[8192]<32000
def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    rows, classes = logits.shape
    loss = torch.empty(rows, device=logits.device)
    cross_entropy_kernel[(rows,)](logits, labels, loss, classes, BLOCK=512)
    return loss
