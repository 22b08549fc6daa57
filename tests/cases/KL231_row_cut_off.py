import triton
import triton.language as tl


@triton.jit
def sum_rows(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + cols, mask=cols < width, other=0.0)
    tl.store(out_ptr + row, tl.sum(x))


def launch(x, out):
    sum_rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=1024)  #! KL231


# Near misses.


def fits(x, out):
    sum_rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))


def checked(x, out):
    if x.shape[1] > 1024:
        raise ValueError("at most 1024 columns")
    sum_rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=1024)


@triton.jit
def in_pieces(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    total = 0.0
    lanes = tl.arange(0, BLOCK)
    for start in range(0, width, BLOCK):
        cols = start + lanes
        total += tl.sum(tl.load(x_ptr + cols, mask=cols < width, other=0.0))
    tl.store(out_ptr, total)


def launch_pieces(x, out):
    in_pieces[(1,)](x, out, x.numel(), BLOCK=1024)


def viewed(x, out):
    x = x.view(-1, 1024)
    sum_rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=1024)


def of_known_length(x, out):
    sum_rows[(x.shape[0],)](x, out, 100, BLOCK=128)


def limited(x, out):
    sum_rows[(x.shape[0],)](x, out, min(x.shape[1], 512), BLOCK=512)
