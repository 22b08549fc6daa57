import triton
import triton.language as tl


@triton.jit
def column_sums(x_ptr, out_ptr, rows, width, BLOCK: tl.constexpr):
    col = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, rows, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + offs * width + col, mask=offs < rows, other=0.0)  #! KL237
    tl.store(out_ptr + col, tl.sum(total))


def launch(x, out):
    column_sums[(x.shape[1],)](x, out, x.shape[0], x.shape[1], BLOCK=256)


# Near misses.


@triton.jit
def row_sums(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * width + offs, mask=offs < width, other=0.0)
    tl.store(out_ptr + row, tl.sum(total))


def launch_rows(x, out):
    row_sums[(x.shape[0],)](x, out, x.shape[1], BLOCK=256)


@triton.jit
def by_stride(x_ptr, out_ptr, rows, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs * stride, mask=offs < rows, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(x))


def launch_by_stride(x, out):
    """A stride may well be one."""
    by_stride[(triton.cdiv(x.shape[0], 256),)](x, out, x.shape[0], x.stride(0), BLOCK=256)


@triton.jit
def tile(x_ptr, out_ptr, rows, width, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    mask = (offs_m[:, None] < rows) & (offs_n[None, :] < width)
    x = tl.load(x_ptr + offs_m[:, None] * width + offs_n[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + offs_m, tl.sum(x, 1), mask=offs_m < rows)


def launch_tile(x, out):
    width = x.shape[1]
    grid = (triton.cdiv(x.shape[0], 16),)
    tile[grid](x, out, x.shape[0], width, BLOCK_M=16, BLOCK_N=triton.next_power_of_2(width))


@triton.jit
def along_the_row(x_ptr, out_ptr, rows, width, BLOCK: tl.constexpr):
    """What one round leaves of a row's cache line, the next one uses."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for col in range(width):
        total += tl.load(x_ptr + offs * width + col, mask=offs < rows, other=0.0)
    tl.store(out_ptr + offs, total, mask=offs < rows)


def launch_along_the_row(x, out):
    along_the_row[(triton.cdiv(x.shape[0], 256),)](x, out, x.shape[0], x.shape[1], BLOCK=256)


@triton.jit
def first_of_each_row(x_ptr, out_ptr, rows, width, BLOCK: tl.constexpr):
    """One element of a row is all that is wanted."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs * width, mask=offs < rows), mask=offs < rows)


def launch_first_of_each_row(x, out):
    first_of_each_row[(triton.cdiv(x.shape[0], 256),)](x, out, x.shape[0], x.shape[1], BLOCK=256)


# Sizes that the launcher unpacks.


@triton.jit
def column_totals(x_ptr, out_ptr, rows, width, BLOCK: tl.constexpr):
    col = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, rows, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + offs * width + col, mask=offs < rows, other=0.0)  #! KL237
    tl.store(out_ptr + col, tl.sum(total))


def launch_totals(x, out):
    rows, width = x.shape
    column_totals[(width,)](x, out, rows, width, BLOCK=256)


@triton.jit
def column_highest(x_ptr, out_ptr, rows, width, BLOCK: tl.constexpr):
    col = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs * width + col, mask=offs < rows, other=-float("inf"))  #! KL237
    tl.store(out_ptr + col, tl.max(x))


def launch_highest(x, out):
    *batch, rows, width = x.size()
    column_highest[(width,)](x, out, rows, width, BLOCK=triton.next_power_of_2(rows))


@triton.jit
def by_step(x_ptr, out_ptr, rows, step, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs * step + tl.program_id(0), mask=offs < rows, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(x))


def launch_by_step(x, out):
    """Not a size: what a star holds, or what is unpacked of strides."""
    rows, *width = x.shape
    step, _ = x.stride()
    by_step[(4,)](x, out, rows, step, BLOCK=1024)
    by_step[(4,)](x, out, rows, width, BLOCK=1024)
