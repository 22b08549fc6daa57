import triton
import triton.language as tl


@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr, tl.sum(tl.where(mask, x, 0.0)))  #! KL233


# Near misses.


@triton.jit
def other_value(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr, tl.max(tl.where(mask, x, -float("inf"))))


@triton.jit
def changed_since(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0) - 1.0
    tl.store(out_ptr, tl.sum(tl.where(mask, x, 0.0)))


@triton.jit
def other_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr, tl.sum(tl.where(x > 1.0, x, 0.0)))


@triton.jit
def mask_rebound(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    valid = offs < n
    x = tl.load(x_ptr + offs, mask=valid, other=0)
    valid = valid & (x >= 0)
    tl.store(out_ptr, tl.sum(tl.where(valid, x, 0)))
