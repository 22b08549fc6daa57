import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": 256}, num_warps=4), triton.Config({"BLOCK": 512}, num_warps=8)]


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def launch(x, y):
    n = x.numel()
    copy[(triton.cdiv(n, 256),)](x, y, n, BLOCK=256)  #! KL238


# Near misses.


def left_out(x, y):
    n = x.numel()
    copy[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)


@triton.jit
def not_tuned(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def launch_not_tuned(x, y):
    n = x.numel()
    not_tuned[(triton.cdiv(n, 256),)](x, y, n, BLOCK=256, num_warps=8)
