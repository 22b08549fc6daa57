import triton
import triton.language as tl


@triton.jit
def butterfly(x_ptr, tmp_ptr, y_ptr, SIZE: tl.constexpr):
    row = tl.program_id(0) * SIZE
    lanes = tl.arange(0, SIZE)
    x = tl.load(x_ptr + row + lanes)
    tl.store(tmp_ptr + row + lanes, x)
    partner = tl.load(tmp_ptr + row + (lanes ^ 1))  #! KL234
    tl.store(y_ptr + row + lanes, x + partner)


# Near misses.


@triton.jit
def with_barrier(x_ptr, tmp_ptr, y_ptr, SIZE: tl.constexpr):
    row = tl.program_id(0) * SIZE
    lanes = tl.arange(0, SIZE)
    x = tl.load(x_ptr + row + lanes)
    tl.store(tmp_ptr + row + lanes, x)
    tl.debug_barrier()
    partner = tl.load(tmp_ptr + row + (lanes ^ 1))
    tl.store(y_ptr + row + lanes, x + partner)


@triton.jit
def own_elements(x_ptr, tmp_ptr, y_ptr, SIZE: tl.constexpr):
    row = tl.program_id(0) * SIZE
    lanes = tl.arange(0, SIZE)
    tl.store(tmp_ptr + row + lanes, tl.load(x_ptr + row + lanes))
    tl.store(y_ptr + row + lanes, tl.load(tmp_ptr + row + lanes))


@triton.jit
def other_part(x_ptr, tmp_ptr, y_ptr, far, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    tl.store(tmp_ptr + lanes, tl.load(x_ptr + lanes))
    tl.store(y_ptr + lanes, tl.load(tmp_ptr + far + (lanes ^ 1)))
