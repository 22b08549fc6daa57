import triton
import triton.language as tl

SCALE = 1.5
WIDTH = 2 * 64
LIMIT = tl.constexpr(88.0)
HALF: tl.constexpr = 0.5


@triton.jit
def scaled(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    y = x * SCALE + WIDTH  #! KL227
    tl.store(y_ptr + offs, tl.minimum(y, LIMIT) * HALF, mask=offs < n)


# Near misses.


@triton.jit
def own_name(x_ptr, y_ptr, n, SCALE, BLOCK: tl.constexpr = WIDTH):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    WIDTH = 3
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, x * SCALE + WIDTH, mask=offs < n)


def launch(x, y):
    own_name[(triton.cdiv(x.numel(), WIDTH),)](x, y, x.numel(), SCALE, BLOCK=WIDTH)
