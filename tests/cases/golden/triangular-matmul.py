"""A product of lower triangular matrices."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _any_special(tile):
    """Whether a number of a tile is infinite or NaN."""
    return tl.max(tl.max((tl.abs(tile) < float("inf")).to(tl.int32) ^ 1, axis=1), axis=0) > 0


@triton.jit
def _half_power(power):
    """A power of two with half of the exponent of another one."""
    bits = power.to(tl.int32, bitcast=True) >> 23
    return (((bits + 127) >> 1) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _scaled(product, left, right):
    """product * left * right, powers of two, of which half a time: nothing overflows on the way."""
    left_half, right_half = _half_power(left), _half_power(right)
    return product * (left_half * right_half) * ((left / left_half) * (right / right_half))


@triton.jit
def _dot_parts(left_high, left_low, right_high, right_low, CAREFUL: tl.constexpr):
    """left @ right of float16 parts: low @ low is below the last bit of float32.

    CAREFUL leaves out infinity times a low part, which may have another sign than the number has."""
    product = tl.dot(left_low, right_high)
    product = tl.dot(left_high, right_low, product)
    if CAREFUL:
        product = tl.where(tl.abs(product) < float("inf"), product, 0.0)
    return tl.dot(left_high, right_high, product)


@triton.jit
def _power_of_two(largest):
    """The exponent bits of a scale that brings the largest number of a block into [2**14, 2**15)."""
    return tl.maximum(((largest.to(tl.int32, bitcast=True) >> 23) & 0xFF) - 14, 1)


@triton.jit
def _dot_float16x3(left, right, CAREFUL: tl.constexpr):
    """left @ right in float32 from three float16 products: two parts hold 22 bits of each number."""
    left_sizes, right_sizes = tl.abs(left), tl.abs(right)
    if CAREFUL:
        left_sizes = tl.where(left_sizes < float("inf"), left_sizes, 0.0)
        right_sizes = tl.where(right_sizes < float("inf"), right_sizes, 0.0)
    left_bits = _power_of_two(tl.max(left_sizes, axis=1)[:, None])
    right_bits = _power_of_two(tl.max(right_sizes, axis=0)[None, :])
    left *= ((254 - left_bits) << 23).to(tl.float32, bitcast=True)  # exact: powers of two
    right *= ((254 - right_bits) << 23).to(tl.float32, bitcast=True)
    left_high, right_high = left.to(tl.float16), right.to(tl.float16)
    left_low = (left - left_high.to(tl.float32)).to(tl.float16)
    right_low = (right - right_high.to(tl.float32)).to(tl.float16)
    if CAREFUL:  # infinity and NaN have no low part
        left_low = tl.where(left_low == left_low, left_low, 0.0)
        right_low = tl.where(right_low == right_low, right_low, 0.0)
    product = _dot_parts(left_high, left_low, right_high, right_low, CAREFUL)
    left_scale = (left_bits << 23).to(tl.float32, bitcast=True)
    right_scale = (right_bits << 23).to(tl.float32, bitcast=True)
    return _scaled(product, left_scale, right_scale) if CAREFUL else product * left_scale * right_scale


@triton.jit
def _fused_matmul_relu_kernel(
    lower_left_ptr, lower_right_ptr, lower_left_row_stride, lower_left_inner_stride,
    lower_right_inner_stride, lower_right_col_stride, out_ptr, n_rows, n_cols, n_inner,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, BLOCK_INNER: tl.constexpr, GROUP: tl.constexpr,
):
    """Each program computes one BLOCK_ROWS x BLOCK_COLS tile and finishes it in registers."""
    tile = tl.program_id(0)
    row_tiles, col_tiles = tl.cdiv(n_rows, BLOCK_ROWS), tl.cdiv(n_cols, BLOCK_COLS)
    # Programs that run at the same time share GROUP rows of tiles, and so their inputs in L2.
    group = tile // (GROUP * col_tiles)
    height = tl.minimum(row_tiles - group * GROUP, GROUP)
    start_row = (group * GROUP + tile % (GROUP * col_tiles) % height) * BLOCK_ROWS
    start_col = tile % (GROUP * col_tiles) // height * BLOCK_COLS
    left_rows = (start_row + tl.arange(0, BLOCK_ROWS)[:, None]).to(tl.int64)
    right_cols = (start_col + tl.arange(0, BLOCK_COLS)[None, :]).to(tl.int64)
    product = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    rows = start_row + tl.arange(0, BLOCK_ROWS)[:, None].to(tl.int64)
    cols = start_col + tl.arange(0, BLOCK_COLS)[None, :]
    # The last tiles reach past the end of the rows and of the columns.
    row_mask, col_mask = rows < n_rows, cols < n_cols
    mask = row_mask & col_mask  # both
    # Zeros above or below a diagonal are not multiplied.
    begin, end = start_col, tl.minimum(n_inner, start_row + BLOCK_ROWS)
    for start in range(begin, end, BLOCK_INNER):
        inner = start + tl.arange(0, BLOCK_INNER).to(tl.int64)
        # past the end of end and of the rows and columns zeros stand in
        lower_left_tile = tl.load(
            lower_left_ptr + left_rows * lower_left_row_stride + inner[None, :] * lower_left_inner_stride,
            mask=(left_rows < n_rows) & (inner[None, :] < end),
            other=0.0,
        )
        lower_right_tile = tl.load(
            lower_right_ptr + inner[:, None] * lower_right_inner_stride + right_cols * lower_right_col_stride,
            mask=(inner[:, None] < end) & (right_cols < n_cols),
            other=0.0,
        )
        product += _dot_float16x3(lower_left_tile, lower_right_tile, False)
    # Infinity times a low part has another sign for half of all numbers, and scales overflow where
    # factors are near the largest number: again, carefully.
    if _any_special(product):
        product = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
        # Zeros above or below a diagonal are not multiplied.
        begin, end = start_col, tl.minimum(n_inner, start_row + BLOCK_ROWS)
        for start in range(begin, end, BLOCK_INNER):
            inner = start + tl.arange(0, BLOCK_INNER).to(tl.int64)
            # past the end of end and of the rows and columns zeros stand in
            lower_left_tile = tl.load(
                lower_left_ptr + left_rows * lower_left_row_stride + inner[None, :] * lower_left_inner_stride,
                mask=(left_rows < n_rows) & (inner[None, :] < end),
                other=0.0,
            )
            lower_right_tile = tl.load(
                lower_right_ptr + inner[:, None] * lower_right_inner_stride + right_cols * lower_right_col_stride,
                mask=(inner[:, None] < end) & (right_cols < n_cols),
                other=0.0,
            )
            product += _dot_float16x3(lower_left_tile, lower_right_tile, True)
    relu = tl.where(product < 0.0, 0.0, product)
    tl.store(out_ptr + rows * n_cols + cols, relu, mask=mask)


def fused_matmul_relu(lower_left, lower_right):
    """Matmul as a float32 product on tensor cores, with relu in its last step."""
    out = torch.empty((lower_left.shape[0], lower_right.shape[-1]), dtype=torch.float32, device=lower_left.device)
    if out.numel() == 0:  # a grid of zero programs cannot be launched
        return out
    lower_right = lower_right.T  # [columns, inner]
    n_rows, n_cols = lower_left.shape[-2], lower_right.shape[-2]
    n_inner = lower_left.shape[-1]
    grid = ((n_rows + 127) // 128 * ((n_cols + 127) // 128),)
    _fused_matmul_relu_kernel[grid](
        lower_left, lower_right, lower_left.stride(-2), lower_left.stride(-1), lower_right.stride(-1),
        lower_right.stride(-2), out, n_rows, n_cols, n_inner, BLOCK_ROWS=128, BLOCK_COLS=128, BLOCK_INNER=64,
        GROUP=8, num_warps=8, num_stages=2,
    )
    return out


# kernel-lsp: workload left=f32[2048,2048] right=f32[2048,2048]
class LowerProduct(nn.Module):
    def _forward_eager(self, left, right):
        lower_left = torch.tril(left)
        lower_right = torch.tril(right)
        return torch.relu(lower_left @ lower_right)

    def forward(self, left, right):
        # Verified on cuda for left: float32 (2048, 2048); right: float32 (2048, 2048).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            left.is_cuda
            and left.dtype == torch.float32
            and left.shape == (2048, 2048)
            and right.is_cuda
            and right.dtype == torch.float32
            and right.shape == (2048, 2048)
            and not torch.is_autocast_enabled("cuda")
            and left.is_contiguous()
            and right.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and left.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (left.requires_grad or right.requires_grad))
        ):
            return self._forward_eager(left, right)
        lower_left = torch.tril(left)
        lower_right = torch.tril(right)
        return fused_matmul_relu(lower_left, lower_right)
