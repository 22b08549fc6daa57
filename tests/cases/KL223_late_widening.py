import triton
import triton.language as tl


@triton.jit
def flat(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)  #! KL223
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def launch_flat(x, y):
    flat[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)


@triton.jit
def rows(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = (row * width).to(tl.int64)  #! KL223
    cols = tl.arange(0, BLOCK)
    x_ptrs = x_ptr + start
    tl.store(y_ptr + row, tl.sum(tl.load(x_ptrs + cols, mask=cols < width, other=0.0)))


# Near misses.


@triton.jit
def in_time(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


@triton.jit
def twice(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    offs = (pid * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


@triton.jit
def an_index(x_ptr, y_ptr, stride, rows, BLOCK: tl.constexpr):
    """Row numbers fit into 32 bits; what they are widened for is the product with the stride."""
    row = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    x = tl.load(x_ptr + row * stride, mask=row < rows)
    tl.store(y_ptr + row, x, mask=row < rows)


@triton.jit
def tokens(x_ptr, y_ptr, num_tokens, BLOCK: tl.constexpr):
    """Nothing says that these are more than a batch's tokens."""
    offs = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < num_tokens), mask=offs < num_tokens)


@triton.jit
def wide_argument(x_ptr, out_ptr, stride: tl.int64, BLOCK: tl.constexpr):
    start = (tl.program_id(0) * stride).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + start + offs, tl.load(x_ptr + start + offs))
