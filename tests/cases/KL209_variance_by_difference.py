import triton
import triton.language as tl


@triton.jit
def statistics(x_ptr, mean_ptr, var_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n
    var = tl.sum(x * x, axis=0) / n - mean * mean  #! KL209
    tl.store(mean_ptr, mean)
    tl.store(var_ptr, var)


@triton.jit
def in_a_loop(x_ptr, var_ptr, n, BLOCK: tl.constexpr):
    total = 0.0
    squares = 0.0
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)
        total += tl.sum(x, axis=0)
        squares += tl.sum(x * x, axis=0)
    inverse = 1.0 / n
    mean = total * inverse
    var = squares * inverse - mean * mean  #! KL209
    tl.store(var_ptr, var)


# Near misses.


@triton.jit
def centered(x_ptr, var_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n
    difference = tl.where(mask, x - mean, 0.0)
    tl.store(var_ptr, tl.sum(difference * difference, axis=0) / n)


@triton.jit
def discriminant(a_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + offs, mask=offs < n)
    half = a / 2
    tl.store(out_ptr + offs, a / 3 - half * half, mask=offs < n)


@triton.jit
def in_twice_the_digits(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0).to(tl.float64)
    mean = tl.sum(x) / n
    tl.store(out_ptr, tl.sum(x * x) / n - mean * mean)
