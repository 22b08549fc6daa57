import triton
import triton.language as tl


@triton.jit
def fill(value_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        value = tl.load(value_ptr)  #! KL220
        tl.store(out_ptr + offs, value, mask=offs < n)


# Near misses.


@triton.jit
def before_the_loop(value_ptr, out_ptr, n, BLOCK: tl.constexpr):
    value = tl.load(value_ptr)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + offs, value, mask=offs < n)


@triton.jit
def compiler_moves_it(value_ptr, x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Nothing is stored in the loop, so Triton takes the load out by itself."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + offs, mask=offs < n, other=0.0) * tl.load(value_ptr)
    tl.store(out_ptr, tl.sum(total))


@triton.jit
def moves_on(p, out_ptr, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        value = tl.load(p)
        p += 1
        tl.store(out_ptr + offs, value, mask=offs < n)


@triton.jit
def stored_inside(state_ptr, n):
    for _ in range(0, n):
        state = tl.load(state_ptr)
        tl.store(state_ptr, state * 2 + 1)


@triton.jit
def first_round_only(start_ptr, out_ptr, n, BLOCK: tl.constexpr):
    total = 0.0
    for start in range(0, n, BLOCK):
        if start == 0:
            total += tl.load(start_ptr)
        tl.store(out_ptr + start, total)


@triton.jit
def into_another(x_ptr, y_ptr, rounds, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    for i in range(rounds):
        x = tl.load(x_ptr + offs)
        tl.store(y_ptr + offs, x * 2 + i)


def launch_on_itself(x):
    """What is stored is what the next round loads."""
    into_another[(1,)](x, x, 3, BLOCK=64)
