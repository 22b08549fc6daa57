import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK):  #! KL205
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=mask), mask=mask)


def launch(x, y):
    copy[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)


# Near misses.


@triton.jit
def lanes(BLOCK):
    """A helper: its argument is constexpr when the caller's is."""
    return tl.arange(0, BLOCK)


@triton.jit
def fill(x_ptr, n, BLOCK: "tl.constexpr"):
    offs = tl.program_id(0) * BLOCK + lanes(BLOCK)
    tl.store(x_ptr + offs, tl.zeros((BLOCK,), tl.float32), mask=offs < n)


def launch_fill(x):
    fill[(triton.cdiv(x.numel(), 128),)](x, x.numel(), 128)
