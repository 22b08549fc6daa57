import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 512})]


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def scale(x_ptr, by, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(x_ptr + offs, x * by, mask=offs < n)  #! KL211


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, x * 2, mask=offs < n)  #! KL211


def double_(x):
    double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x, x.numel())


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def in_one_statement(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)  #! KL211


# Near misses.


@triton.autotune(configs=CONFIGS, key=["n"], restore_value=["x_ptr"])
@triton.jit
def restored(x_ptr, by, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(x_ptr + offs, x * by, mask=offs < n)


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def out_of_place(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, x * 2, mask=offs < n)


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def scratch(x_ptr, tmp_ptr, n, BLOCK: tl.constexpr):
    """What is read back was stored by this very run."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(tmp_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)
    y = tl.load(tmp_ptr + offs, mask=offs < n)
    tl.store(tmp_ptr + offs, y * 2, mask=offs < n)
