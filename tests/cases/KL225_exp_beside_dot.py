import triton
import triton.language as tl


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, o_ptr, scale, length, D: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    dims = tl.arange(0, D)
    q = tl.load(q_ptr + rows[:, None] * D + dims[None, :])
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    norm = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, D), tl.float32)
    for start in range(0, length, BLOCK):
        cols = start + rows
        k = tl.load(k_ptr + cols[None, :] * D + dims[:, None], mask=cols[None, :] < length, other=0.0)
        v = tl.load(v_ptr + cols[:, None] * D + dims[None, :], mask=cols[:, None] < length, other=0.0)
        s = tl.dot(q, k) * scale
        new = tl.maximum(best, tl.max(s, 1))
        p = tl.exp(s - new[:, None])  #! KL225
        keep = tl.exp(best - new)
        norm = norm * keep + tl.sum(p, 1)
        acc = acc * keep[:, None] + tl.dot(p.to(v.dtype), v)
        best = new
    tl.store(o_ptr + rows[:, None] * D + dims[None, :], acc / norm[:, None])


# Near misses.


@triton.jit
def base_two(q_ptr, k_ptr, o_ptr, scale, length, D: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    dims = tl.arange(0, D)
    q = tl.load(q_ptr + rows[:, None] * D + dims[None, :])
    norm = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, length, BLOCK):
        cols = start + rows
        k = tl.load(k_ptr + cols[None, :] * D + dims[:, None], mask=cols[None, :] < length, other=0.0)
        s = tl.dot(q, k) * (scale * 1.44269504)
        norm += tl.sum(tl.exp2(s - tl.max(s, 1)[:, None]), 1)
    tl.store(o_ptr + rows, norm)


@triton.jit
def no_product(x_ptr, y_ptr, scale, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n) * scale
        tl.store(y_ptr + offs, tl.exp(x - 1.0), mask=offs < n)


@triton.jit
def decay(a_ptr, b_ptr, g_ptr, o_ptr, length, D: tl.constexpr, BLOCK: tl.constexpr):
    """The exponent is no scaled product: there is no scale to put the factor into."""
    rows = tl.arange(0, BLOCK)
    dims = tl.arange(0, D)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, length, BLOCK):
        cols = start + rows
        g = tl.load(g_ptr + cols, mask=cols < length, other=0.0)
        a = tl.load(a_ptr + cols[:, None] * D + dims[None, :], mask=cols[:, None] < length, other=0.0)
        b = tl.load(b_ptr + cols[None, :] * D + dims[:, None], mask=cols[None, :] < length, other=0.0)
        acc += tl.dot(a, b) * tl.exp(g[:, None] - g[None, :])
    tl.store(o_ptr + rows[:, None] * BLOCK + rows[None, :], acc)
