import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 512})]


@triton.autotune(configs=CONFIGS, key=["rows"])  #! KL212
@triton.jit
def sum_rows(x_ptr, out_ptr, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * cols + offs, mask=(offs < cols) & (row < rows), other=0.0)
    tl.store(out_ptr + row, tl.sum(total))


def launch(x, out):
    sum_rows[(x.shape[0],)](x, out, x.shape[0], x.shape[1])


# Near misses.


@triton.autotune(configs=CONFIGS, key=["cols"])
@triton.jit
def complete(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * cols + offs, mask=offs < cols, other=0.0)
    tl.store(out_ptr + row, tl.sum(total))


def launch_complete(x, out):
    complete[(x.shape[0],)](x, out, x.shape[1])


@triton.autotune(configs=CONFIGS, key=["bucket"])
@triton.jit
def rounded(x_ptr, out_ptr, cols, bucket, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * cols + offs, mask=offs < cols, other=0.0)
    tl.store(out_ptr + row, tl.sum(total))


def launch_rounded(x, out):
    cols = x.shape[1]
    rounded[(x.shape[0],)](x, out, cols, triton.next_power_of_2(cols))


@triton.autotune(configs=[triton.Config({}, num_warps=4), triton.Config({}, num_warps=8)], key=["rows"])
@triton.jit
def tile_is_given(x_ptr, out_ptr, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * cols + offs, mask=(offs < cols) & (row < rows), other=0.0)
    tl.store(out_ptr + row, tl.sum(total))


def launch_tile_is_given(x, out):
    tile_is_given[(x.shape[0],)](x, out, x.shape[0], x.shape[1], BLOCK=1024)


@triton.autotune(configs=CONFIGS, key=["rows"])
@triton.jit(do_not_specialize=["cols"])
def on_purpose(x_ptr, out_ptr, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * cols + offs, mask=(offs < cols) & (row < rows), other=0.0)
    tl.store(out_ptr + row, tl.sum(total))


def launch_on_purpose(x, out):
    on_purpose[(x.shape[0],)](x, out, x.shape[0], x.shape[1])
