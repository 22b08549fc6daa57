import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, other=0.0)  #! KL230
    tl.store(y_ptr + offs, x)


# Near misses.


@triton.jit
def masked(x_ptr, y_ptr, n, mask, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, offs < n, other=0.0)
    y = tl.load(x_ptr + offs, mask=mask, other=0.0)
    tl.store(y_ptr + offs, x + y, mask=offs < n)
