import triton
import triton.language as tl


@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.device_print("x", x)  #! KL226
    print("pid", tl.program_id(0))  #! KL226
    tl.static_print(BLOCK)  #! KL226
    tl.store(out_ptr, tl.sum(x))


# Near misses.


@triton.jit
def chosen(x_ptr, out_ptr, n, DEBUG: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    if DEBUG:
        tl.device_print("x", x)
    tl.device_assert(n > 0, "empty")
    tl.store(out_ptr, tl.sum(x))


def launch(x, out):
    print("launching")
    chosen[(1,)](x, out, x.numel(), DEBUG=False, BLOCK=triton.next_power_of_2(x.numel()))


VERBOSE = tl.constexpr(False)


@triton.jit
def chosen_by_a_global(x_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    if VERBOSE:
        tl.device_print("x", x)
    tl.store(x_ptr + tl.arange(0, BLOCK), x * 2)
