import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 512})]


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def launch(x, y):
    grid = (triton.cdiv(x.numel(), 256),)
    copy[grid](x, y, x.numel())  #! KL215


# Near misses.


def launch_by_function(x, y):
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
    copy[grid](x, y, x.numel())


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def persistent(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        offs = start + tl.arange(0, BLOCK)
        tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def launch_persistent(x, y):
    persistent[(132,)](x, y, x.numel())


@triton.autotune(configs=CONFIGS, key=["cols"])
@triton.jit
def rows(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, cols, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + offs, mask=offs < cols)
        tl.store(y_ptr + row * cols + offs, x, mask=offs < cols)


def launch_rows(x, y):
    rows[(x.shape[0],)](x, y, x.shape[1])
