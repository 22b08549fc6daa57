import triton
import triton.language as tl


@triton.jit
def largest(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    best = float("-inf")
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)  #! KL207
        best = tl.maximum(best, tl.max(x, axis=0))
    tl.store(out_ptr, best)


@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=1.0)  #! KL207
    tl.store(out_ptr, tl.sum(x))


# Near misses.


@triton.jit
def counts(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Nothing says that these are ever negative."""
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    tl.store(out_ptr, tl.max(x))


@triton.jit
def magnitude(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    best = float("-inf")
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
        best = tl.maximum(best, tl.max(tl.abs(x), axis=0))
    tl.store(out_ptr, best)


@triton.jit
def right(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=-float("inf"))
    tl.store(out_ptr, tl.max(x))


@triton.jit
def lengths(x_ptr, n_ptr, out_ptr, rows, BLOCK: tl.constexpr):
    """The -inf is the start of something else."""
    best = float("-inf")
    offs = tl.arange(0, BLOCK)
    longest = tl.max(tl.load(n_ptr + offs, mask=offs < rows, other=0), 0)
    for i in range(0, longest):
        best = tl.maximum(best, tl.load(x_ptr + i))
    tl.store(out_ptr, best)
