import torch
import triton
import triton.language as tl


@triton.jit
def strided(x_ptr, y_ptr, strides_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    step = tl.load(strides_ptr)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs * step, mask=offs < n), mask=offs < n)


def launch(x, y):
    strides = torch.tensor(x.stride(), device=x.device)  #! KL229
    strided[(triton.cdiv(y.numel(), 1024),)](x, y, strides, y.numel(), BLOCK=1024)


def launch_moved(x, y):
    strided[(triton.cdiv(y.numel(), 1024),)](
        x,
        y,
        torch.tensor([2, 3]).cuda(),  #! KL229
        y.numel(),
        BLOCK=1024,
    )


# Near misses.


def given(x, y, strides):
    strided[(triton.cdiv(y.numel(), 1024),)](x, y, strides, y.numel(), BLOCK=1024)


def on_the_device(x, y):
    strides = torch.ones(1, dtype=torch.int64, device=x.device)
    strided[(triton.cdiv(y.numel(), 1024),)](x, y, strides, y.numel(), BLOCK=1024)


def on_the_host(x, y):
    seed = torch.tensor(7).to(torch.int32)
    strided[(triton.cdiv(y.numel(), 1024),)](x, y, seed, y.numel(), BLOCK=1024)


def launch_with_what_may_be_there(x, y, factor):
    """A tensor that lies on the device stays as it is."""
    given = torch.as_tensor(factor, device=x.device)
    strided[(triton.cdiv(y.numel(), 1024),)](x, y, given, y.numel(), BLOCK=1024)
