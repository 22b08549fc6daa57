import triton
import triton.language as tl


@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)  #! KL206
    tl.store(out_ptr, tl.sum(x.to(tl.float32)))


@triton.jit
def squares_of_rows(x_ptr, out_ptr, rows, cols, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    mask = (offs_m[:, None] < rows) & (offs_n[None, :] < cols)
    x = tl.load(x_ptr + offs_m[:, None] * cols + offs_n[None, :], mask=mask)  #! KL206
    tl.store(out_ptr + offs_m, tl.sum(x * x, axis=1), mask=offs_m < rows)


# Near misses.


@triton.jit
def filled(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr, tl.sum(x))


@triton.jit
def chosen_before(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(out_ptr, tl.sum(tl.where(mask, x, 0.0)))


@triton.jit
def other_rows(x_ptr, out_ptr, rows, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    """The lanes that the mask leaves out are whole rows, and their sums are never stored."""
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, WIDTH)
    x = tl.load(x_ptr + offs_m[:, None] * WIDTH + offs_n[None, :], mask=offs_m[:, None] < rows)
    tl.store(out_ptr + offs_m, tl.sum(x, axis=1), mask=offs_m < rows)


@triton.jit
def next_round_only(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    before = 0.0
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n)
        tl.store(out_ptr + offs, before + tl.cumsum(x, 0), mask=offs < n)
        before += tl.sum(x)


@triton.jit
def scan(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """What lies behind the last element does not reach the sums before it."""
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, tl.cumsum(x, 0), mask=offs < n)


@triton.jit
def cleared_by_a_broadcast_mask(x_ptr, out_ptr, rows, width, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    mask = offs_m < rows
    x = tl.load(x_ptr + offs_m[:, None] * width + offs_n[None, :], mask=mask[:, None])
    tl.store(out_ptr + offs_n, tl.sum(x * mask[:, None].to(tl.float32), axis=0))
