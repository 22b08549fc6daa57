"""Source that writes float32 numbers as two float16 parts: a whole factor beforehand, or a tile on the way.

Ootomo and Yokota (2022) recover single precision from half precision products in this way; the power of two
for each row replaces their fixed one, so that numbers of any size keep their digits.
"""

SPLIT = '''\
@triton.jit
def _split_float16_kernel(
    values_ptr, parts_ptr, scale_ptr, n_rows, n_inner, padded, batch_stride, row_stride, inner_stride,
    BLOCK_ROWS: tl.constexpr, BLOCK_INNER: tl.constexpr,
):
    """Writes rows as scale * (high + low): two float16 hold 22 bits of each number."""
    batch = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]
    row_mask = rows < n_rows  # the last block reaches past the end
    values_ptr += batch * batch_stride + rows * row_stride
    largest = tl.zeros([BLOCK_ROWS, 1], tl.float32)
    for start in range(0, n_inner, BLOCK_INNER):
        inner = start + tl.arange(0, BLOCK_INNER)[None, :].to(tl.int64)
        values = tl.load(values_ptr + inner * inner_stride, mask=row_mask & (inner < n_inner), other=0.0)
        largest = tl.maximum(largest, tl.max(tl.abs(values), axis=1)[:, None])
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
        low = (scaled - high.to(tl.float32)).to(tl.float16)
        mask = row_mask & (inner < padded)  # zeros up to the padding
        tl.store(parts_ptr + rows * 2 * padded + inner, high, mask=mask)
        tl.store(parts_ptr + rows * 2 * padded + padded + inner, low, mask=mask)


def _split_float16(values):
    """float32 [batch, rows, inner] as float16 parts [batch * rows, 2 * padded], and a scale per row."""
    batch, n_rows, n_inner = values.shape
    padded = triton.cdiv(n_inner, 64) * 64  # whole blocks: the product needs no mask there
    parts = torch.empty(batch * n_rows, 2 * padded, dtype=torch.float16, device=values.device)
    scale = torch.empty(batch * n_rows, dtype=torch.float32, device=values.device)
    if values.stride(2) == 1:
        block = min(2048, triton.next_power_of_2(padded))
        rows = 4096 // block
    else:  # neighbors in memory belong to different rows
        block, rows = 256, 32
    _split_float16_kernel[(triton.cdiv(n_rows, rows), batch)](
        values, parts, scale, n_rows, n_inner, padded, *values.stride(),
        BLOCK_ROWS=rows, BLOCK_INNER=block, num_warps=8,
    )
    return parts, scale
'''

SPLIT_TILE = '''\
@triton.jit
def _power_of_two(largest):
    """The exponent bits of a scale that brings the largest number of a block into [2**14, 2**15)."""
    return tl.maximum(((largest.to(tl.int32, bitcast=True) >> 23) & 0xFF) - 14, 1)


@triton.jit
def _dot_float16x3(left, right):
    """left @ right in float32 from three float16 products: two parts hold 22 bits of each number."""
    left_bits = _power_of_two(tl.max(tl.abs(left), axis=1)[:, None])
    right_bits = _power_of_two(tl.max(tl.abs(right), axis=0)[None, :])
    left *= ((254 - left_bits) << 23).to(tl.float32, bitcast=True)  # exact: powers of two
    right *= ((254 - right_bits) << 23).to(tl.float32, bitcast=True)
    left_high, right_high = left.to(tl.float16), right.to(tl.float16)
    left_low = (left - left_high.to(tl.float32)).to(tl.float16)
    right_low = (right - right_high.to(tl.float32)).to(tl.float16)
    product = tl.dot(left_low, right_high)
    product = tl.dot(left_high, right_low, product)
    product = tl.dot(left_high, right_high, product)
    product *= (left_bits << 23).to(tl.float32, bitcast=True)
    return product * (right_bits << 23).to(tl.float32, bitcast=True)
'''
