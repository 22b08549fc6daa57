import torch
import triton
import triton.language as tl
from mine import refuse_what_is_not_dense


@triton.jit
def relu(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, tl.maximum(x, 0.0), mask=offs < n)


def launch(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    relu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)  #! KL241
    return y


# Near misses.


def made_contiguous(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    relu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


def checked(x: torch.Tensor) -> torch.Tensor:
    assert x.is_contiguous()
    y = torch.empty_like(x)
    relu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


def _inner(x: torch.Tensor, y: torch.Tensor) -> None:
    """Whoever calls it may have looked already."""
    relu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)


@torch.no_grad()
def decorated(x: torch.Tensor, y: torch.Tensor) -> None:
    relu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)


@triton.jit
def rows(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + cols, mask=cols < width, other=0.0)
    tl.store(y_ptr + row, tl.sum(x))


def stage_of_something(x: torch.Tensor, y: torch.Tensor) -> None:
    """Told shapes and no number of elements: perhaps one stage of many behind one that looked."""
    rows[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))


def looked_at_elsewhere(x: torch.Tensor) -> torch.Tensor:
    refuse_what_is_not_dense(x)
    y = torch.empty_like(x)
    relu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


def looked_at_by_nobody(x: torch.Tensor) -> torch.Tensor:
    print(len(x), torch.numel(x))
    y = torch.empty_like(x)
    relu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)  #! KL241
    return y
