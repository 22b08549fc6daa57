"""Source that writes float32 numbers as two float16 parts: a whole factor beforehand, or a tile on
the way.

Ootomo and Yokota (2022) recover single precision from half precision products in this way; the
power of two for each row replaces their fixed one, so that numbers of any size keep their digits.
"""

DOT_PARTS = '''\
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
'''

SPLIT = '''\
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
'''

SPLIT_TILE = '''\
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
'''
