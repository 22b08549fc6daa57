from mine import common
import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def launch(x, y):
    n = x.numel()
    copy[(triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024, num_stages=4)  #! KL221


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 256}, num_stages=2),  #! KL221
        triton.Config({"BLOCK": 256}, num_stages=3),
    ],
    key=["n"],
)
@triton.jit
def tuned(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


# Near misses.


@triton.jit
def loop(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr, tl.sum(total))


def launch_loop(x, out):
    loop[(1,)](x, out, x.numel(), BLOCK=1024, num_stages=4)


@triton.jit
def summed(x_ptr, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    return tl.sum(total)


@triton.jit
def loop_in_a_helper(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.store(out_ptr, summed(x_ptr, n, BLOCK))


def launch_helper(x, out):
    loop_in_a_helper[(1,)](x, out, x.numel(), BLOCK=1024, num_stages=4)
    copy[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024, num_stages=1)


@triton.jit
def through_a_module(x_ptr, n, BLOCK: tl.constexpr):
    common.inner(x_ptr, n, BLOCK)


def launch_through_a_module(x):
    through_a_module[(4,)](x, x.numel(), BLOCK=64, num_stages=3)


@triton.jit
def index_of_another_module(x_ptr, n, BLOCK: tl.constexpr):
    offs = common.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, 1.0, mask=offs < n)


def launch_index(x):
    index_of_another_module[(4,)](x, x.numel(), BLOCK=64, num_stages=3)  #! KL221
