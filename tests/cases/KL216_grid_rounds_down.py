import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def launch(x, y):
    n = x.numel()
    block = 1024
    copy[(n // block,)](x, y, n, BLOCK=block)  #! KL216


def launch_by_function(x, y):
    grid = lambda meta: (x.shape[0] // meta["BLOCK"],)  #! KL216
    copy[grid](x, y, x.shape[0], BLOCK=1024)


def launch_by_number(x, y):
    n = x.numel()
    copy[(n // 1024,)](x, y, n, BLOCK=1024)  #! KL216


# Near misses.


def rounds_up(x, y):
    n = x.numel()
    block = 1024
    copy[((n + block - 1) // block,)](x, y, n, BLOCK=block)
    copy[(triton.cdiv(n, block),)](x, y, n, BLOCK=block)
    copy[(n // 1,)](x, y, n, BLOCK=1024)


def checks(x, y):
    n = x.numel()
    block = 1024
    assert n % block == 0
    copy[(n // block,)](x, y, n, BLOCK=block)


def whole(x, y):
    n = triton.next_power_of_2(x.numel())
    block = 1024
    copy[(n // block,)](x, y, x.numel(), BLOCK=block)


@triton.jit
def whole_tiles_only(x_ptr, y_ptr, TILE: tl.constexpr):
    """No mask: the caller passes multiples."""
    offs = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs))


def launch_whole_tiles(x, y):
    tile = 128
    whole_tiles_only[(x.shape[0] // tile,)](x, y, TILE=tile)


@triton.jit
def rows_of_their_own_length(x_ptr, lengths_ptr, y_ptr, stride, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    length = tl.load(lengths_ptr + row)
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + offs, mask=offs < length, other=0.0)
    tl.store(y_ptr + row * stride + offs, x, mask=offs < length)


def launch_padded_rows(x, lengths, y, padded):
    block = 128
    grid = (padded // block, x.shape[0])
    rows_of_their_own_length[grid](x, lengths, y, x.stride(0), BLOCK=block)
