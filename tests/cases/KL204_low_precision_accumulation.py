import triton
import triton.language as tl


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, K, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float16)  #! KL204
    low = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK):
        a = tl.load(a_ptr + lanes[:, None] * K + k + lanes[None, :], mask=k + lanes[None, :] < K)
        b = tl.load(b_ptr + lanes[:, None] * K + k + lanes[None, :], mask=k + lanes[None, :] < K)
        acc = tl.dot(a, b, acc)
        low += tl.dot(a, b, out_dtype=tl.float16)  #! KL204
    tl.store(c_ptr + lanes[:, None] * BLOCK + lanes[None, :], acc + low)


@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr, tl.sum(x.to(tl.bfloat16)))  #! KL204


# Near misses.


@triton.jit
def cast_at_the_end(a_ptr, c_ptr, K, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    padding = tl.zeros((BLOCK,), dtype=tl.float16)
    for k in range(0, K, BLOCK):
        acc += tl.load(a_ptr + k + lanes, mask=k + lanes < K)
    tl.store(c_ptr + lanes, acc.to(tl.float16) + padding)
