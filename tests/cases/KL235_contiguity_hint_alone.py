import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, y_ptr, M, BLOCK: tl.constexpr):
    wrapped = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) % M
    offs = tl.max_contiguous(wrapped, BLOCK)  #! KL235
    tl.store(y_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + offs)))


# Near misses.


@triton.jit
def both(x_ptr, y_ptr, M, BLOCK: tl.constexpr):
    wrapped = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) % M
    offs = tl.max_contiguous(tl.multiple_of(wrapped, BLOCK), BLOCK)
    tl.store(y_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + offs)))


@triton.jit
def known_anyway(x_ptr, y_ptr, M, BLOCK: tl.constexpr):
    offs = tl.max_contiguous(tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), BLOCK)
    tl.store(y_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + offs, mask=offs < M, other=0.0)))


@triton.jit
def in_the_other_order(x_ptr, out_ptr, m, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.multiple_of(tl.max_contiguous(offs % m, BLOCK), BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + rows))
