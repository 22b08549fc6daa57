"""The first half of a feed-forward block, with a gate from outside."""

import torch
import torch.nn as nn
import torch.nn.functional as F
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
def _split_rows(
    values_ptr, parts_ptr, scale_ptr, block, n_rows, n_inner, padded, batch_stride, row_stride, inner_stride,
    BLOCK_ROWS: tl.constexpr, BLOCK_INNER: tl.constexpr,
):
    """Writes rows as scale * (high + low): two float16 hold 22 bits of each number."""
    batch = tl.program_id(1).to(tl.int64)
    rows = block.to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    row_mask = rows < n_rows  # the last block reaches past the end
    values_ptr += batch * batch_stride + rows * row_stride
    largest = tl.zeros([BLOCK_ROWS, 1], tl.float32)
    for start in range(0, n_inner, BLOCK_INNER):
        inner = start + tl.arange(0, BLOCK_INNER)[None, :].to(tl.int64)
        values = tl.load(values_ptr + inner * inner_stride, mask=row_mask & (inner < n_inner), other=0.0)
        sizes = tl.where(tl.abs(values) < float("inf"), tl.abs(values), 0.0)
        largest = tl.maximum(largest, tl.max(sizes, axis=1)[:, None])
    # A power of two, so that dividing is exact and the largest number of the row lies in [2**14, 2**15).
    exponent = tl.maximum(((largest.to(tl.int32, bitcast=True) >> 23) & 0xFF) - 14, 1)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    rows += batch * n_rows
    tl.store(scale_ptr + rows, (exponent << 23).to(tl.float32, bitcast=True), mask=row_mask)
    for start in range(0, padded, BLOCK_INNER):
        inner = start + tl.arange(0, BLOCK_INNER)[None, :].to(tl.int64)
        values = tl.load(values_ptr + inner * inner_stride, mask=row_mask & (inner < n_inner), other=0.0)
        scaled = values * inverse
        high = scaled.to(tl.float16)
        # Infinity and NaN have no low part: they stay what they are.
        low = tl.where(tl.abs(scaled) < float("inf"), scaled - high.to(tl.float32), 0.0).to(tl.float16)
        mask = row_mask & (inner < padded)  # zeros up to the padding
        tl.store(parts_ptr + rows * 2 * padded + inner, high, mask=mask)
        tl.store(parts_ptr + rows * 2 * padded + padded + inner, low, mask=mask)


@triton.jit
def _split_float16_kernel(
    left_ptr, left_parts_ptr, left_scale_ptr, n_rows, left_batch_stride, left_row_stride, left_inner_stride,
    right_ptr, right_parts_ptr, right_scale_ptr, n_cols, right_batch_stride, right_col_stride,
    right_inner_stride, n_inner, padded,
    LEFT_ROWS: tl.constexpr, LEFT_INNER: tl.constexpr, RIGHT_ROWS: tl.constexpr, RIGHT_INNER: tl.constexpr,
):
    """The first programs split the left factor, the others the right one: a second launch costs the host
    more than both take."""
    block, left_blocks = tl.program_id(0), tl.cdiv(n_rows, LEFT_ROWS)
    if block < left_blocks:
        _split_rows(
            left_ptr, left_parts_ptr, left_scale_ptr, block, n_rows, n_inner, padded,
            left_batch_stride, left_row_stride, left_inner_stride, LEFT_ROWS, LEFT_INNER,
        )
    else:
        _split_rows(
            right_ptr, right_parts_ptr, right_scale_ptr, block - left_blocks, n_cols, n_inner, padded,
            right_batch_stride, right_col_stride, right_inner_stride, RIGHT_ROWS, RIGHT_INNER,
        )


def _split_float16(left, right):
    """Both factors, float32 [rows or columns, inner] or a batch of them, as float16 parts [.., 2 * padded]
    with a scale for each row."""
    (*batches, n_rows, n_inner), n_cols = left.shape, right.shape[-2]
    batch, alone = (batches[0], ()) if batches else (1, (0,))  # a stride for the only batch
    padded = (n_inner + 63) // 64 * 64  # whole blocks: the product needs no mask there
    left_parts = torch.empty(batch * n_rows, 2 * padded, dtype=torch.float16, device=left.device)
    right_parts = torch.empty(batch * n_cols, 2 * padded, dtype=torch.float16, device=left.device)
    left_scale = torch.empty(batch * n_rows, dtype=torch.float32, device=left.device)
    right_scale = torch.empty(batch * n_cols, dtype=torch.float32, device=left.device)
    block = min(2048, 1 << (padded - 1).bit_length())  # a power of two
    wide, tall = (4096 // block, block), (32, 256)  # tall: neighbors in memory belong to different rows
    left_rows, left_inner = wide if left.stride(-1) == 1 else tall
    right_rows, right_inner = wide if right.stride(-1) == 1 else tall
    blocks = (n_rows + left_rows - 1) // left_rows + (n_cols + right_rows - 1) // right_rows
    _split_float16_kernel[(blocks, batch)](
        left, left_parts, left_scale, n_rows, *alone, *left.stride(),
        right, right_parts, right_scale, n_cols, *alone, *right.stride(), n_inner, padded,
        LEFT_ROWS=left_rows, LEFT_INNER=left_inner, RIGHT_ROWS=right_rows, RIGHT_INNER=right_inner,
        num_warps=8,
    )
    return left_parts, left_scale, right_parts, right_scale


@triton.jit
def _fused_linear_gelu_mul_kernel(
    tokens_parts_ptr, weight_parts_ptr, tokens_scale_ptr, weight_scale_ptr, bias_ptr, gate_ptr, out_ptr,
    n_rows, n_cols, padded, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, BLOCK_INNER: tl.constexpr,
    GROUP: tl.constexpr,
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
    inner = tl.arange(0, BLOCK_INNER)
    left_at = tokens_parts_ptr + left_rows * 2 * padded + inner[None, :]
    right_at = weight_parts_ptr + right_cols * 2 * padded + inner[:, None]
    product = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    rows = start_row + tl.arange(0, BLOCK_ROWS)[:, None].to(tl.int64)
    cols = start_col + tl.arange(0, BLOCK_COLS)[None, :]
    # The last tiles reach past the end of the rows and of the columns.
    row_mask, col_mask = rows < n_rows, cols < n_cols
    mask = row_mask & col_mask  # both
    for start in range(0, padded, BLOCK_INNER):
        tokens_high = tl.load(left_at + start, mask=left_rows < n_rows, other=0.0)
        tokens_low = tl.load(left_at + padded + start, mask=left_rows < n_rows, other=0.0)
        weight_high = tl.load(right_at + start, mask=right_cols < n_cols, other=0.0)
        weight_low = tl.load(right_at + padded + start, mask=right_cols < n_cols, other=0.0)
        block = _dot_parts(tokens_high, tokens_low, weight_high, weight_low, False)
        product += block  # not on the tensor core, which drops low bits when it adds to a long sum
    product *= tl.load(tokens_scale_ptr + rows, mask=row_mask)
    product *= tl.load(weight_scale_ptr + cols, mask=col_mask)
    # Infinity times a low part has another sign for half of all numbers, and scales overflow where
    # factors are near the largest number: again, carefully.
    if _any_special(product):
        product = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
        for start in range(0, padded, BLOCK_INNER):
            tokens_high = tl.load(left_at + start, mask=left_rows < n_rows, other=0.0)
            tokens_low = tl.load(left_at + padded + start, mask=left_rows < n_rows, other=0.0)
            weight_high = tl.load(right_at + start, mask=right_cols < n_cols, other=0.0)
            weight_low = tl.load(right_at + padded + start, mask=right_cols < n_cols, other=0.0)
            block = _dot_parts(tokens_high, tokens_low, weight_high, weight_low, True)
            product += block  # not on the tensor core, which drops low bits when it adds to a long sum
        product = _scaled(
            product, tl.load(tokens_scale_ptr + rows, mask=row_mask),
            tl.load(weight_scale_ptr + cols, mask=col_mask),
        )
    bias = tl.load(bias_ptr + cols, mask=col_mask)
    hidden = product + bias
    gate = tl.load(gate_ptr + rows * n_cols + cols, mask=mask)
    scaled = (0.5 * hidden * (1.0 + tl.erf(hidden * 0.7071067811865476))) * gate
    tl.store(out_ptr + rows * n_cols + cols, scaled, mask=mask)


def fused_linear_gelu_mul(tokens, weight, bias, gate):
    """Linear as a float32 product on tensor cores, with gelu, mul in its last step."""
    bias, gate = bias.contiguous(), gate.contiguous()
    out = torch.empty((*tokens.shape[:-1], weight.shape[0]), dtype=torch.float32, device=tokens.device)
    if out.numel() == 0:  # a grid of zero programs cannot be launched
        return out
    tokens = tokens.flatten(0, -2)  # [rows, inner]
    n_rows, n_cols = tokens.shape[-2], weight.shape[-2]
    tokens_parts, tokens_scale, weight_parts, weight_scale = _split_float16(tokens, weight)
    padded = tokens_parts.shape[1] // 2
    grid = ((n_rows + 127) // 128 * ((n_cols + 127) // 128),)
    _fused_linear_gelu_mul_kernel[grid](
        tokens_parts, weight_parts, tokens_scale, weight_scale, bias, gate, out, n_rows, n_cols, padded,
        BLOCK_ROWS=128, BLOCK_COLS=128, BLOCK_INNER=64, GROUP=8, num_warps=8, num_stages=3,
    )
    return out


# kernel-lsp: workload tokens=f32[8,512,1024] gate=f32[8,512,4096]
class GatedProjection(nn.Module):
    def __init__(self, width=1024, hidden=4096):
        super().__init__()
        self.up = nn.Linear(width, hidden)

    def _forward_eager(self, tokens, gate):
        hidden = self.up(tokens)
        return F.gelu(hidden) * gate

    def forward(self, tokens, gate):
        # Verified on cuda for tokens: float32 (8, 512, 1024); gate: float32 (8, 512, 4096).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            tokens.is_cuda
            and tokens.dtype == torch.float32
            and tokens.shape[1:] == (512, 1024)
            and gate.is_cuda
            and gate.dtype == torch.float32
            and gate.shape == (tokens.shape[0], 512, 4096)
            and not torch.is_autocast_enabled("cuda")
            and type(up := self.up) is torch.nn.Linear
            and not (up._forward_hooks or up._forward_pre_hooks)
            and (up_weight := up.weight).dtype == torch.float32
            and up_weight.shape == (4096, 1024)
            and torch.cuda.get_device_properties(torch.cuda.current_device()).major >= 9
            and tokens.is_contiguous()
            and gate.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and tokens.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (tokens.requires_grad or gate.requires_grad
                or up_weight.requires_grad or any(p.requires_grad for p in self.parameters())))
        ):
            return self._forward_eager(tokens, gate)
        return fused_linear_gelu_mul(tokens, up_weight, up.bias, gate)
