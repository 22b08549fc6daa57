"""Kernels along a sequence: attention, running sums, rotary positions, a short convolution."""

import torch
import triton
import triton.language as tl


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, length, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    base = tl.program_id(1).to(tl.int64) * length * WIDTH
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tl.arange(0, WIDTH)
    places = base + rows[:, None] * WIDTH + width[None, :]
    q = tl.load(q_ptr + places, mask=rows[:, None] < length, other=0.0)
    highest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    out = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)
    for start in range(0, length, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        others = base + columns[:, None] * WIDTH + width[None, :]
        k = tl.load(k_ptr + others, mask=columns[:, None] < length, other=0.0)
        v = tl.load(v_ptr + others, mask=columns[:, None] < length, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(columns[None, :] < length, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        weights = tl.exp(scores - higher[:, None])
        shrink = tl.exp(highest - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        out = out * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        highest = higher
    tl.store(out_ptr + places, out / total[:, None], mask=rows[:, None] < length)


# kernel-lsp: workload q=bf16[4,16,4096,64] k=bf16[4,16,4096,64] v=bf16[4,16,4096,64]
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    batch, heads, length, width = q.shape
    out = torch.empty_like(q)
    grid = lambda meta: (triton.cdiv(length, meta["BLOCK_M"]), batch * heads)  # noqa: E731
    attention_kernel[grid](q, k, v, out, length, width**-0.5, BLOCK_M=32, BLOCK_N=32, WIDTH=width)
    return out


@triton.jit
def running_sum_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    before = 0.0
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
        tl.store(
            out_ptr + row * columns + column, before + tl.cumsum(x, axis=0), mask=column < columns
        )
        before += tl.sum(x, axis=0)


# kernel-lsp: workload x=f32[4096,16384]
def running_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    running_sum_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=256)
    return out


@triton.jit
def rotary_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, length, heads, HALF: tl.constexpr):
    token = tl.program_id(0)
    head = tl.program_id(1)
    width = tl.arange(0, HALF)
    place = token % length
    base = (token.to(tl.int64) * heads + head) * 2 * HALF
    cos = tl.load(cos_ptr + place * HALF + width).to(tl.float32)
    sin = tl.load(sin_ptr + place * HALF + width).to(tl.float32)
    first = tl.load(x_ptr + base + width).to(tl.float32)
    second = tl.load(x_ptr + base + HALF + width).to(tl.float32)
    tl.store(out_ptr + base + width, first * cos - second * sin)
    tl.store(out_ptr + base + HALF + width, second * cos + first * sin)


# kernel-lsp: workload x=bf16[4,2048,32,128] cos=bf16[2048,64] sin=bf16[2048,64]
def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    batch, length, heads, width = x.shape
    out = torch.empty_like(x)
    rotary_kernel[(batch * length, heads)](x, cos, sin, out, length, heads, HALF=width // 2)
    return out


@triton.jit
def causal_conv_kernel(
    x_ptr, weight_ptr, out_ptr, length, channels, TAPS: tl.constexpr, BLOCK: tl.constexpr
):
    step = tl.program_id(1)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    base = tl.program_id(2).to(tl.int64) * length * channels
    mask = channel < channels
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in range(TAPS):
        at = step - TAPS + 1 + tap
        x = tl.load(x_ptr + base + at * channels + channel, mask=mask & (at >= 0), other=0.0)
        weight = tl.load(weight_ptr + channel * TAPS + tap, mask=mask, other=0.0)
        total += x.to(tl.float32) * weight.to(tl.float32)
    tl.store(out_ptr + base + step * channels + channel, total * tl.sigmoid(total), mask=mask)


# kernel-lsp: workload x=bf16[8,2048,4096] weight=bf16[4096,4]
def causal_conv(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    batch, length, channels = x.shape
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(channels, meta["BLOCK"]), length, batch)  # noqa: E731
    causal_conv_kernel[grid](x, weight, out, length, channels, TAPS=weight.shape[1], BLOCK=128)
    return out
