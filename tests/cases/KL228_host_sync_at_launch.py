import torch
import numpy as np
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, by, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * by, mask=offs < n)


def normalize(x):
    largest = x.abs().max()
    scale[(triton.cdiv(x.numel(), 1024),)](x, 1 / largest.item(), x.numel(), BLOCK=1024)  #! KL228


def normalize_by_name(x):
    by = x.norm().item()  #! KL228
    scale[(triton.cdiv(x.numel(), 1024),)](x, by, x.numel(), BLOCK=1024)


# Near misses.


def the_host_needs_it(x):
    num_kept = (x > 0).sum().item()
    out = torch.empty(num_kept, device=x.device)
    scale[(triton.cdiv(num_kept, 1024),)](out, 2.0, num_kept, BLOCK=1024)
    return out


def a_number(x, settings):
    scale[(triton.cdiv(x.numel(), 1024),)](x, settings.item("scale"), x.numel(), BLOCK=1024)


def launch_with_the_hosts_own(x, lengths):
    n = np.prod(x.shape).item()
    scale[(4,)](x, n, 1000, BLOCK=256)
    scale[(4,)](x, torch.tensor(lengths).sum().item(), 1000, BLOCK=256)


def launch_after_a_sum(x, lengths):
    scale[(4,)](x, torch.tensor(lengths, device=x.device).sum().item(), 1000, BLOCK=256)  #! KL228
