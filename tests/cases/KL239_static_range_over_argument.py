import triton
import triton.language as tl


@triton.jit
def power(x_ptr, y_ptr, n, times, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    y = x
    for _ in tl.static_range(times):  #! KL239
        y = y * x
    tl.store(y_ptr + offs, y, mask=offs < n)


def launch(x, y, times):
    power[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), times, BLOCK=256)


# Near misses.


@triton.jit
def known(x_ptr, y_ptr, n, times, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    y = x
    for _ in tl.static_range(TIMES):
        y = y * x
    for _ in range(times):
        y = y * x
    tl.store(y_ptr + offs, y, mask=offs < n)


def launch_known(x, y, times):
    known[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), times, TIMES=3, BLOCK=256)


@triton.jit
def helper(x, times):
    """A helper's argument is constexpr when its caller's is."""
    for _ in tl.static_range(times):
        x = x * x
    return x


@triton.jit
def calls(x_ptr, y_ptr, n, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, helper(tl.load(x_ptr + offs, mask=offs < n), TIMES), mask=offs < n)


def launch_calls(x, y):
    calls[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), TIMES=3, BLOCK=256)
