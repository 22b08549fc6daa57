import triton
import triton.language as tl


@triton.jit
def weight_gradient(x_ptr, dw_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + cols, mask=cols < width, other=0.0)
    tl.store(dw_ptr + cols, x * x, mask=cols < width)  #! KL218


def launch(x, dw):
    weight_gradient[(x.shape[0],)](x, dw, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))


# Near misses.


@triton.jit
def per_row(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + cols, mask=cols < width, other=0.0)
    tl.store(y_ptr + row, tl.sum(x))


def launch_per_row(x, y):
    per_row[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))


@triton.jit
def first_only(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + cols, mask=cols < width, other=0.0)
    if row == 0:
        tl.store(y_ptr + cols, x, mask=cols < width)


def launch_first_only(x, y):
    first_only[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))


@triton.jit
def one_program(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + cols, mask=cols < width, other=0.0)
    tl.store(y_ptr + cols, x, mask=cols < width)


def launch_one_program(x, y):
    one_program[(1,)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))


@triton.jit
def scatter(x_ptr, index_ptr, y_ptr, width, BLOCK: tl.constexpr):
    """Where it stores depends on data: perhaps each program somewhere else."""
    row = tl.program_id(0)
    target = tl.load(index_ptr + row)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + cols, mask=cols < width, other=0.0)
    tl.store(y_ptr + target * width + cols, x, mask=cols < width)


def launch_scatter(x, index, y):
    scatter[(x.shape[0],)](x, index, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))


@triton.jit
def split(x_ptr, y_ptr, width, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    part = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + part * width + cols, mask=cols < width, other=0.0)
    if SPLIT == 1:
        tl.store(y_ptr + cols, x, mask=cols < width)
    else:
        tl.atomic_add(y_ptr + cols, x, mask=cols < width, sem="relaxed")


def launch_split(x, y, parts):
    split[(parts,)](x, y, x.shape[1], SPLIT=parts, BLOCK=triton.next_power_of_2(x.shape[1]))


@triton.jit
def one_tile_wide(x_ptr, s_ptr, rows, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + cols, mask=cols < width, other=0.0)
    tl.store(s_ptr + row, tl.sum(x))


def launch_one_tile_wide(x, s):
    block = triton.next_power_of_2(x.shape[1])
    grid = (x.shape[0], triton.cdiv(x.shape[1], block))
    one_tile_wide[grid](x, s, x.shape[0], x.shape[1], BLOCK=block)
