"""Positions of what is kept, and a discounted sum from the end."""

import torch
import triton
import triton.language as tl


@triton.jit
def _fused_mul_reverse_cumsum_div_kernel(
    rewards_ptr, alive_ptr, discount_ptr, out_ptr, n_lines, n_scan, BLOCK_SIZE: tl.constexpr,
    BLOCK_LINES: tl.constexpr,
):
    """Each program scans whole lines, block by block."""
    first_line = tl.program_id(0).to(tl.int64) * BLOCK_LINES  # int64: offsets can pass 2**31
    lines = first_line + tl.arange(0, BLOCK_LINES)
    present = lines < n_lines  # the last program reaches past the end
    carry = tl.full([BLOCK_LINES], 0.0, tl.float32)
    edge = (tl.arange(0, BLOCK_SIZE) == 0)[None, :]
    for block in range(0, n_scan, BLOCK_SIZE):
        start = (n_scan - 1) // BLOCK_SIZE * BLOCK_SIZE - block  # from the end: the last block, which is not full, comes first
        steps = start + tl.arange(0, BLOCK_SIZE)
        mask = present[:, None] & (steps < n_scan)[None, :]  # the last block is not full
        offs = lines[:, None] * n_scan + steps[None, :]
        rewards = tl.load(rewards_ptr + offs, mask=mask)
        alive = tl.load(alive_ptr + offs, mask=mask)
        to_float = alive.to(tl.float32)
        scaled = rewards * to_float
        discount = tl.load(discount_ptr + steps[None, :], mask=mask)
        kept_2 = scaled * discount
        kept_3 = tl.where(mask, kept_2, 0.0)
        cumsum = tl.cumsum(kept_3, axis=1, reverse=True) + carry[:, None]
        carry = tl.sum(tl.where(edge, cumsum, 0.0), axis=1)
        ratio = cumsum / discount
        tl.store(out_ptr + offs, ratio, mask=mask)


def fused_mul_reverse_cumsum_div(rewards, alive, discount):
    """Cumulative sum along dimension 1 from the end with mul, mul, div.

    rewards, out: float32 (n_outer, n_scan)
    alive: bool (n_outer, n_scan)
    discount: float32 (n_scan,)
    """
    rewards, alive, discount = rewards.contiguous(), alive.contiguous(), discount.contiguous()
    n_scan = rewards.shape[1]
    out = torch.empty(rewards.shape, dtype=torch.float32, device=rewards.device)
    n_lines = out.numel() // n_scan
    if out.numel() > 0:  # a grid of zero programs cannot be launched
        _fused_mul_reverse_cumsum_div_kernel[(n_lines,)](
            rewards, alive, discount, out, n_lines, n_scan, BLOCK_SIZE=4096, BLOCK_LINES=1, num_warps=8,
        )
    return out


# kernel-lsp: workload rewards=f32[2048,8192] alive=bool[2048,8192] discount=f32[8192]
def _returns_eager(rewards, alive, discount):
    kept = rewards * alive * discount
    total = kept.flip(1).cumsum(1).flip(1)
    return total / discount


def returns(rewards, alive, discount):
    # Verified on cuda for rewards: float32 (2048, 8192); alive: bool (2048, 8192); discount: float32 (8192,).
    # Anything that the reasoning below does not cover takes the original path.
    if not (
        rewards.is_cuda
        and rewards.dtype == torch.float32
        and rewards.shape[1:] == (8192,)
        and alive.is_cuda
        and alive.dtype == torch.bool
        and alive.shape == (rewards.shape[0], 8192)
        and discount.is_cuda
        and discount.dtype == torch.float32
        and discount.shape == (8192,)
        and not torch.is_autocast_enabled("cuda")
        and rewards.is_contiguous()
        and alive.is_contiguous()
        and discount.is_contiguous()
        and not torch._C._are_functorch_transforms_active()
        and rewards.get_device() == torch.cuda.current_device()
        and not (torch.is_grad_enabled() and (rewards.requires_grad or discount.requires_grad))
    ):
        return _returns_eager(rewards, alive, discount)
    return fused_mul_reverse_cumsum_div(rewards, alive, discount)
