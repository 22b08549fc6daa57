import torch
import triton
import triton.language as tl


@triton.jit
def no_mask_at_all(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)  #! KL201
    tl.store(y_ptr + offs, x)  #! KL201


@triton.jit
def only_load_masked(x_ptr, y_ptr, n_cols, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < n_cols, other=0.0)
    tl.store(y_ptr + row * stride + cols, x)  #! KL201


@triton.jit
def loop(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + offs)  #! KL201
    tl.store(out_ptr, tl.sum(total))


# Near misses.


@triton.jit
def masked(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=mask), mask=mask)


@triton.jit
def wrapped(x_ptr, y_ptr, M, BLOCK: tl.constexpr):
    offs = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) % M
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + tl.program_id(0), tl.sum(x))


@triton.jit
def even_path(x_ptr, y_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        x = tl.load(x_ptr + offs)
    else:
        x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, x, mask=offs < n)


@triton.jit
def exact(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs))


def launch_exact(x):
    assert x.numel() % 1024 == 0
    y = torch.empty_like(x)
    exact[(x.numel() // 1024,)](x, y, x.numel(), BLOCK=1024)
    return y


@triton.jit
def whole_tiles(x_ptr, y_ptr, M, TILE: tl.constexpr):
    pid = tl.program_id(0) % (M // TILE)
    offs = pid * TILE + tl.arange(0, TILE)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs))


@triton.jit
def fixed_width(x_ptr, y_ptr, stride, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, WIDTH)
    tl.store(y_ptr + row * stride + cols, tl.load(x_ptr + row * stride + cols))


@triton.jit
def block_pointer(x_ptr, n, BLOCK: tl.constexpr):
    block = tl.make_block_ptr(x_ptr, (n,), (1,), (tl.program_id(0) * BLOCK,), (BLOCK,), (0,))
    tl.store(block, tl.load(block, boundary_check=(0,)) + 1, boundary_check=(0,))


@triton.jit
def padded_scratch(x_ptr, tmp_ptr, E: tl.constexpr, E_P2: tl.constexpr):
    """The scratch has room for the whole block."""
    bins = tl.arange(0, E_P2)
    x = tl.load(x_ptr + bins, mask=bins < E, other=0)
    tl.store(tmp_ptr + bins, tl.cumsum(x, 0))
