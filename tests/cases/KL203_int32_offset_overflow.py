import triton
import triton.language as tl


@triton.jit
def two_sizes(x_ptr, y_ptr, length, width, BLOCK: tl.constexpr):
    batch = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    base = batch * length * width  #! KL203
    x = tl.load(x_ptr + base + cols, mask=cols < width)
    tl.store(y_ptr + base + cols, x, mask=cols < width)


# Near misses.


@triton.jit
def half_widened(x_ptr, y_ptr, x_stride, y_stride, width, BLOCK: tl.constexpr):
    """What was left in 32 bits may be the smaller tensor."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * x_stride + cols, mask=cols < width)
    tl.store(y_ptr + row * y_stride + cols, x, mask=cols < width)


@triton.jit
def widened(x_ptr, y_ptr, length, width, BLOCK: tl.constexpr):
    batch = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    base = batch * length * width
    x = tl.load(x_ptr + base + cols, mask=cols < width)
    tl.store(y_ptr + base + cols, x, mask=cols < width)


@triton.jit
def one_stride(x_ptr, stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    tl.store(x_ptr + row * stride + cols, 0, mask=cols < width)


@triton.jit
def bounded(x_ptr, y_ptr, n, height, width, BLOCK: tl.constexpr):
    """A remainder is below its divisor, and x // d * d not above x."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image = offs // (height * width)
    rest = offs - image * (height * width)
    row = rest % height
    x = tl.load(x_ptr + row * width * height + rest, mask=offs < n)
    tl.store(y_ptr + offs, x, mask=offs < n)


@triton.jit
def a_difference(x_ptr, out_ptr, length, share, width, BLOCK: tl.constexpr):
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, length)
    total = 0.0
    for start in range(0, (last - first) * width, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x_ptr + offs, mask=offs < (last - first) * width, other=0.0))
    tl.store(out_ptr + tl.program_id(0), total)


@triton.jit
def wide_arguments(x_ptr, out_ptr, rows: tl.int64, stride: "tl.int64", BLOCK: tl.constexpr):
    """Triton passes what is annotated so in 64 bits, whatever its value."""
    start = tl.program_id(0) * rows * stride
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + start + offs, tl.load(x_ptr + start + offs))
