import triton
import triton.language as tl


@triton.jit
def product(a_ptr, b_ptr, c_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    ks = tl.arange(0, K)
    a = tl.load(a_ptr + lanes[:, None] * K + ks[None, :]).to(tl.float32)
    b = tl.load(b_ptr + ks[:, None] * BLOCK + lanes[None, :]).to(tl.float32)
    c = tl.dot(a, b)  #! KL224
    tl.store(c_ptr + lanes[:, None] * BLOCK + lanes[None, :], c)


# Near misses.


@triton.jit
def as_loaded(a_ptr, b_ptr, c_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    ks = tl.arange(0, K)
    a = tl.load(a_ptr + lanes[:, None] * K + ks[None, :])
    b = tl.load(b_ptr + ks[:, None] * BLOCK + lanes[None, :])
    tl.store(c_ptr + lanes[:, None] * BLOCK + lanes[None, :], tl.dot(a, b))


@triton.jit
def on_purpose(a_ptr, b_ptr, c_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    ks = tl.arange(0, K)
    a = tl.load(a_ptr + lanes[:, None] * K + ks[None, :]).to(tl.float32)
    b = tl.load(b_ptr + ks[:, None] * BLOCK + lanes[None, :]).to(tl.float32)
    c = tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + lanes[:, None] * BLOCK + lanes[None, :], c)


@triton.jit
def computed(a_ptr, b_ptr, c_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    """The left tile has more digits than what was loaded."""
    lanes = tl.arange(0, BLOCK)
    ks = tl.arange(0, K)
    a = tl.exp(tl.load(a_ptr + lanes[:, None] * K + ks[None, :]).to(tl.float32))
    b = tl.load(b_ptr + ks[:, None] * BLOCK + lanes[None, :]).to(tl.float32)
    tl.store(c_ptr + lanes[:, None] * BLOCK + lanes[None, :], tl.dot(a, b))
