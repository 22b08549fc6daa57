"""A token mixer that looks one step back, and the total difference of its neighbors."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def _moved_pad_sub_mul_add_kernel(
    x_ptr, out_ptr, n_rows, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, WIDE: tl.constexpr,
):
    """Each program writes a tile; a row has 2048 elements of (n, 1024, 2048)."""
    # int64 where offsets can pass 2**31
    pid = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    n_blocks: tl.constexpr = (2048 + BLOCK_COLS - 1) // BLOCK_COLS
    rows = pid // n_blocks * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    cols = pid % n_blocks * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]
    col_mask = cols < 2048
    row_mask = rows < n_rows
    mask = row_mask & col_mask  # the last tiles reach past the end
    x = tl.load(x_ptr + rows * 2048 + cols, mask=mask).to(tl.float32)
    at = rows % 1024
    inside = at >= 1
    x_2 = tl.load(x_ptr + rows * 2048 + cols - 2048, mask=mask & inside, other=0.0).to(tl.float32)
    difference = x_2 - x
    scaled = difference * 0.25
    shifted = x + scaled
    mixed = tl.sigmoid(shifted)
    tl.store(out_ptr + rows * 2048 + cols, mixed, mask=mask)


def moved_pad_sub_mul_add(x):
    """Pad, sub, mul, add and sigmoid in one pass.

    x, out: bfloat16 (n, 1024, 2048)
    """
    x = x.contiguous()
    out = torch.empty((x.shape[0], 1024, 2048), dtype=torch.bfloat16, device=x.device)
    n_rows = out.numel() // 2048
    n_programs = ((n_rows + 1) // 2) * 2
    if n_programs > 0:  # a grid of zero programs cannot be launched
        wide = max(x.numel(), n_rows * 2048) >= 2**31
        _moved_pad_sub_mul_add_kernel[(n_programs,)](
            x, out, n_rows, BLOCK_ROWS=2, BLOCK_COLS=1024, WIDE=wide, num_warps=4,
        )
    return out


# kernel-lsp: workload x=bf16[16,1024,2048]
class TokenShift(nn.Module):
    def _forward_eager(self, x):
        before = F.pad(x, (0, 0, 1, -1))
        mixed = torch.sigmoid(x + (before - x) * 0.25)
        change = x[:, 1:] - x[:, :-1]
        return mixed, change

    def forward(self, x):
        # Verified on cuda for x: bfloat16 (16, 1024, 2048).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            x.is_cuda
            and x.dtype == torch.bfloat16
            and x.shape[1:] == (1024, 2048)
            and not torch.is_autocast_enabled("cuda")
            and x.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and x.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (x.requires_grad))
        ):
            return self._forward_eager(x)
        change = x[:, 1:] - x[:, :-1]
        return moved_pad_sub_mul_add(x), change
