import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, y_ptr, n: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def launch(x, y):
    n = x.numel()
    copy[(triton.cdiv(n, 1024),)](
        x,
        y,
        n,  #! KL217
        BLOCK=1024,
    )


@triton.jit
def scale_rows(x_ptr, s_ptr, rows: tl.constexpr, width: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + cols, mask=(cols < width) & (row < rows))
    tl.store(x_ptr + row * width + cols, x * tl.load(s_ptr + row), mask=(cols < width) & (row < rows))


def launch_rows(x, s):
    flat = x.view(-1, x.shape[-1])
    scale_rows[(flat.shape[0],)](
        flat,
        s,
        flat.shape[0],  #! KL217
        flat.shape[1],
        BLOCK=triton.next_power_of_2(flat.shape[1]),
    )


# Near misses.


@triton.jit
def length(x_ptr, y_ptr, n: tl.constexpr):
    offs = tl.arange(0, n)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs))


def launch_length(x, y):
    length[(1,)](x, y, x.numel())


@triton.jit
def plain(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def launch_plain(x, y):
    plain[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)


# Unpacked: of the first size only, which counts the rows.


@triton.jit
def shift_rows(x_ptr, s_ptr, rows: tl.constexpr, width: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + cols, mask=(cols < width) & (row < rows))
    tl.store(x_ptr + row * width + cols, x + tl.load(s_ptr + row), mask=(cols < width) & (row < rows))


def launch_shift(x, s):
    flat = x.reshape(-1, x.shape[-1])
    rows, width = flat.shape
    shift_rows[(rows,)](
        flat,
        s,
        rows,  #! KL217
        width,
        BLOCK=triton.next_power_of_2(width),
    )
