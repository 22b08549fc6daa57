import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1)
    x = tl.load(x_ptr + row * width + cols, mask=cols < width)
    tl.store(y_ptr + row * width + cols, x, mask=cols < width)


def launch(x, y):
    width = x.shape[-1]
    rows = x.numel() // width
    copy[(triton.cdiv(width, 256), rows)](x, y, width, BLOCK=256)  #! KL240


# Near misses.


@triton.jit
def rows_first(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + cols, mask=cols < width)
    tl.store(y_ptr + row * width + cols, x, mask=cols < width)


def launch_rows_first(x, y):
    width = x.shape[-1]
    rows_first[(x.numel() // width, triton.cdiv(width, 256))](x, y, width, BLOCK=256)


def checked(x, y):
    width = x.shape[-1]
    rows = x.numel() // width
    if rows > 65535:
        raise ValueError("too many rows")
    copy[(triton.cdiv(width, 256), rows)](x, y, width, BLOCK=256)


def heads(x, y):
    copy[(triton.cdiv(x.shape[-1], 256), x.shape[0])](x, y, x.shape[-1], BLOCK=256)


def groups(x, y, offsets):
    copy[(triton.cdiv(x.shape[-1], 256), offsets.numel())](x, y, x.shape[-1], BLOCK=256)
