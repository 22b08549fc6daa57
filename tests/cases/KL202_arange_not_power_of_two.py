import triton
import triton.language as tl

WIDTH = 96
GOOD = tl.constexpr(128)


@triton.jit
def literal(x_ptr):
    offs = tl.arange(0, 100)  #! KL202
    tl.store(x_ptr + offs, 0)


@triton.jit
def constant(x_ptr):
    offs = tl.arange(0, WIDTH)  #! KL202 KL227
    tl.store(x_ptr + offs, 0)


@triton.jit
def launched(x_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)  #! KL202
    tl.store(x_ptr + offs, 0)


def launch(x):
    launched[(1,)](x, BLOCK=1000)


@triton.autotune(configs=[triton.Config({"BLOCK": 192})], key=["n"])
@triton.jit
def tuned(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)  #! KL202
    tl.store(x_ptr + offs, 0, mask=offs < n)


# Near misses.


@triton.jit
def powers(x_ptr, BLOCK: tl.constexpr):
    a = tl.arange(0, 64)
    b = tl.arange(0, GOOD)
    c = tl.arange(64, 128)
    d = tl.arange(0, BLOCK)
    tl.store(x_ptr + a + b + c + d, 0)


def launch_power(x):
    powers[(1,)](x, BLOCK=triton.next_power_of_2(x.shape[0]))


SHADOWED = 96


@triton.jit
def filled(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, 1.0, mask=offs < n)


def launch_filled(x, SHADOWED=128):
    """The launcher's own, and not the global of that name."""
    filled[(triton.cdiv(x.numel(), SHADOWED),)](x, x.numel(), BLOCK=SHADOWED)


@triton.jit
def own_length(x_ptr):
    SHADOWED: tl.constexpr = 128
    tl.store(x_ptr + tl.arange(0, SHADOWED), 1.0)


@triton.jit
def passed(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  #! KL202
    tl.store(x_ptr + offs, 1.0, mask=offs < n)


def launch_passed(x):
    width = 48
    passed[(triton.cdiv(x.numel(), width),)](x, x.numel(), BLOCK=width)
