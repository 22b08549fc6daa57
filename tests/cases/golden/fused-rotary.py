"""Queries and keys of a decoder, turned by their places behind the projections."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _fused_rotary_kernel(
    x_ptr, cos_ptr, sin_ptr, out_ptr, x_batch, x_head, x_row, x_col, cos_batch, cos_head, cos_row, cos_col,
    sin_batch, sin_head, sin_row, sin_col, out_batch, out_head, out_row, out_col, n_heads, n_rows,
    n_half: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):
    """Each program takes BLOCK_ROWS rows, both halves of each at once."""
    n_blocks = tl.cdiv(n_rows, BLOCK_ROWS)
    outer, block = tl.program_id(0) // n_blocks, tl.program_id(0) % n_blocks
    batch, head = (outer // n_heads).to(tl.int64), (outer % n_heads).to(tl.int64)
    rows = block.to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    cols = tl.arange(0, BLOCK_HALF)[None, :]
    mask = (rows < n_rows) & (cols < n_half)  # the last rows, and a power of two of columns
    x_at = x_ptr + batch * x_batch + head * x_head + rows * x_row + cols * x_col
    cos_at = cos_ptr + batch * cos_batch + head * cos_head + rows * cos_row + cols * cos_col
    sin_at = sin_ptr + batch * sin_batch + head * sin_head + rows * sin_row + cols * sin_col
    out_at = out_ptr + batch * out_batch + head * out_head + rows * out_row + cols * out_col
    x_left = tl.load(x_at, mask=mask).to(tl.float32)
    x_right = tl.load(x_at + n_half * x_col, mask=mask).to(tl.float32)
    cos_left = tl.load(cos_at, mask=mask).to(tl.float32)
    cos_right = tl.load(cos_at + n_half * cos_col, mask=mask).to(tl.float32)
    sin_left = tl.load(sin_at, mask=mask).to(tl.float32)
    sin_right = tl.load(sin_at + n_half * sin_col, mask=mask).to(tl.float32)
    tl.store(out_at, x_left * cos_left - x_right * sin_left, mask=mask)
    tl.store(out_at + n_half * out_col, x_right * cos_right + x_left * sin_right, mask=mask)


def fused_rotary(x, cos, sin):
    """Rotate the halves of the last dimension in one pass.

    x, out: float32 (n_batch, n_heads, n_rows, n_cols)
    cos, sin: float32 (n_rows, n_cols)
    """
    out = torch.empty_like(x)
    cos = cos.expand(x.shape)
    sin = sin.expand(x.shape)
    n_batch, n_heads, n_rows = x.shape[:-1]
    if x.numel() > 0:  # a grid of zero programs cannot be launched
        grid = (n_batch * n_heads * ((n_rows + 31) // 32),)
        _fused_rotary_kernel[grid](
            x, cos, sin, out, *x.stride(), *cos.stride(), *sin.stride(), *out.stride(), n_heads, n_rows,
            x.shape[-1] // 2, BLOCK_ROWS=32, BLOCK_HALF=32, num_warps=4,
        )
    return out


# kernel-lsp: workload x=f32[4,1024,512] cos=f32[1024,64] sin=f32[1024,64]
class RotaryHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(512, 512), nn.Linear(512, 512)

    def _forward_eager(self, x, cos, sin):
        q = self.query(x).view(-1, 1024, 8, 64).transpose(1, 2)
        k = self.key(x).view(-1, 1024, 8, 64).transpose(1, 2)
        q = q * cos + self.rotate_half(q) * sin
        k = k * cos + self.rotate_half(k) * sin
        return q, k

    def forward(self, x, cos, sin):
        # Verified on cuda for x: float32 (4, 1024, 512); cos: float32 (1024, 64); sin: float32 (1024, 64).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            x.is_cuda
            and x.dtype == torch.float32
            and x.shape[1:] == (1024, 512)
            and cos.is_cuda
            and cos.dtype == torch.float32
            and cos.shape == (1024, 64)
            and sin.is_cuda
            and sin.dtype == torch.float32
            and sin.shape == (1024, 64)
            and not torch.is_autocast_enabled("cuda")
            and (key_weight := self.key.weight).dtype == torch.float32
            and key_weight.shape == (512, 512)
            and (query_weight := self.query.weight).dtype == torch.float32
            and query_weight.shape == (512, 512)
            and type(self).rotate_half is RotaryHeads.rotate_half and "rotate_half" not in self.__dict__
            and x.is_contiguous()
            and cos.is_contiguous()
            and sin.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and x.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (x.requires_grad or cos.requires_grad
                or sin.requires_grad or query_weight.requires_grad
                or any(p.requires_grad for p in self.parameters())))
        ):
            return self._forward_eager(x, cos, sin)
        q = self.query(x).view(-1, 1024, 8, 64).transpose(1, 2)
        k = self.key(x).view(-1, 1024, 8, 64).transpose(1, 2)
        return fused_rotary(q, cos, sin), fused_rotary(k, cos, sin)

    def rotate_half(self, x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)
