import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def launch(x, y):
    n = x.numel()
    copy[(triton.cdiv(n, 64),)](x, y, n, BLOCK=64, num_warps=4)  #! KL222


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 128}, num_warps=8),  #! KL222
        triton.Config({"BLOCK": 256}, num_warps=8),
    ],
    key=["n"],
)
@triton.jit
def tuned(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


# Near misses.


@triton.jit
def square(x_ptr, y_ptr, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.arange(0, BLOCK_M)[:, None]
    cols = tl.arange(0, BLOCK_N)[None, :]
    mask = (rows < n) & (cols < n)
    tl.store(y_ptr + rows * n + cols, tl.load(x_ptr + rows * n + cols, mask=mask), mask=mask)


def launch_square(x, y, width):
    square[(1,)](x, y, min(x.shape[0], 16), BLOCK_M=16, BLOCK_N=16, num_warps=8)
    copy[(1,)](x, y, x.numel(), BLOCK=width, num_warps=8)
    copy[(1,)](x, y, x.numel(), BLOCK=256, num_warps=8)
    copy[(1,)](x, y, x.numel(), BLOCK=16, num_warps=1)


@triton.jit
def one_range_for_both(x_ptr, out_ptr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    place = lanes[:, None] * BLOCK + lanes[None, :]
    tl.store(out_ptr + place, tl.load(x_ptr + place))


def launch_one_range(x, out):
    """One range for both axes: 256 elements."""
    one_range_for_both[(1,)](x, out, BLOCK=16, num_warps=4)
