import triton
import triton.language as tl


@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(x))  #! KL219


# Near misses.


@triton.jit
def relaxed(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(x), sem="relaxed")


@triton.jit
def last_one_finishes(x_ptr, part_ptr, ticket_ptr, out_ptr, n, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """The order matters: who draws the last ticket reads what the others stored."""
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    tl.store(part_ptr + pid, tl.sum(tl.load(x_ptr + offs, mask=offs < n, other=0.0)))
    ticket = tl.atomic_add(ticket_ptr, 1)
    if ticket == tl.num_programs(0) - 1:
        tl.store(out_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, PARTS))))


@triton.jit
def reads_it_back(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    before = tl.load(out_ptr)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(x) - before)


@triton.jit
def signal(x_ptr, y_ptr, ready_ptr, n, BLOCK: tl.constexpr):
    """Who sees the count must see what was stored."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)
    tl.atomic_add(ready_ptr, 1)
