"""A gated recurrence, h = sigmoid(gate) * h + x along time: tiles of time are scanned at once, the
state carried on. The gate lies between 0 and 1, so products of any number of them stay finite."""

import torch
import triton
import triton.language as tl


@triton.jit
def combine(a_left, h_left, a_right, h_right):
    return a_left * a_right, a_right * h_left + h_right


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_T": 64, "BLOCK_D": 32}, num_warps=4, num_stages=3),
        triton.Config({"BLOCK_T": 128, "BLOCK_D": 32}, num_warps=8, num_stages=2),
        triton.Config({"BLOCK_T": 64, "BLOCK_D": 64}, num_warps=8, num_stages=3),
    ],
    key=["length", "width"],
)
@triton.jit
def scan_kernel(
    gate_ptr, x_ptr, out_ptr, length, width, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr
):
    inner = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    first = tl.multiple_of(tl.program_id(1).to(tl.int64) * length * width, 16)
    state = tl.zeros((BLOCK_D,), dtype=tl.float32)
    moment = tl.arange(0, BLOCK_T)
    for start in tl.range(0, length, BLOCK_T, num_stages=3):
        time = start + moment
        place = first + time[:, None] * width + inner[None, :]
        mask = (time[:, None] < length) & (inner[None, :] < width)
        gate = tl.load(gate_ptr + place, mask=mask, other=0.0, eviction_policy="evict_first")
        x = tl.load(x_ptr + place, mask=mask, other=0.0, eviction_policy="evict_first")
        decay, h = tl.associative_scan((tl.sigmoid(gate), x), 0, combine)
        h = h + decay * state[None, :]
        tl.store(out_ptr + place, h, mask=mask, cache_modifier=".cs")
        state = tl.sum(tl.where(moment[:, None] == BLOCK_T - 1, h, 0.0), axis=0)


def scan(gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    gate, x = gate.contiguous(), x.contiguous()
    batch, length, width = x.shape
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(width, meta["BLOCK_D"]), batch)  # noqa: E731
    scan_kernel[grid](gate, x, out, length, width)
    return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(16, 4096, 1024), torch.randn(16, 4096, 1024)]
