"""A decoder whose output is only averaged."""

import torch
import torch.nn as nn
import triton
import triton.language as tl
import torch.nn.functional as F


@triton.jit
def _sum_by_tap_kernel(
    x_ptr, sums_ptr, BLOCK_ROWS: tl.constexpr, BLOCK_W: tl.constexpr, TAPS: tl.constexpr
):
    """Each program reads one channel of one sample and sums it once for each tap of the kernel."""
    plane = tl.program_id(0).to(tl.int64)  # int64: offsets can pass 2**31
    tap = tl.arange(0, TAPS)[None, :]  # 16 taps, rounded up to a power of two
    tap_h = tap // 4
    tap_w = tap % 4
    row = tl.arange(0, BLOCK_ROWS)[:, None]
    column = tl.arange(0, BLOCK_W)[None, :]
    sums = tl.zeros((BLOCK_ROWS, TAPS), dtype=tl.float32)
    for first_row in range(0, 48, BLOCK_ROWS):
        rows = first_row + row
        h = rows
        at_h = h * 2 - 1 + tap_h
        in_tap = (at_h >= 0) & (at_h < 96)  # rows that this tap meets
        for first_column in range(0, 48, BLOCK_W):
            w = first_column + column
            inside = (rows < 48) & (w < 48)  # the last tile is not full
            x = tl.load(x_ptr + (plane * 48 + rows) * 48 + w, mask=inside, other=0.0)
            for k in tl.static_range(4):
                at_w = w * 2 - 1 + k
                met = tl.where((at_w >= 0) & (at_w < 96), x, 0.0)  # columns that this tap meets
                sums += tl.where(in_tap & (tap_w == k), tl.sum(met, axis=1)[:, None], 0.0)
    sums_of_plane = sums_ptr + plane * 16 + tap
    total = tl.sum(sums, axis=0)[None, :] / 9216  # the mean over the outputs
    tl.store(sums_of_plane, total, mask=tap < 16)  # rounded up


def sum_by_tap(x):
    """What each tap of the kernel meets, averaged over all outputs.

    x: float32 (n, channels, 48, 48)
    sums: float32 (n, channels, 4, 4)
    """
    x = x.contiguous()
    n, channels = x.shape[:2]
    sums = torch.empty((n, channels, 4, 4), dtype=torch.float32, device=x.device)
    if n > 0:  # a grid of zero programs cannot be launched
        _sum_by_tap_kernel[(n * channels,)](
            x, sums, BLOCK_ROWS=32, BLOCK_W=64, TAPS=16, num_warps=4
        )
    return sums


# kernel-lsp: workload features=f32[32,64,48,48]
class Descriptor(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(64, 48, kernel_size=4, stride=2, padding=1)

    def _forward_eager(self, features):
        upsampled = self.up(features)
        return upsampled.mean(dim=(2, 3))

    def forward(self, features):
        # Verified on cuda for features: float32 (32, 64, 48, 48).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            features.is_cuda
            and features.dtype == torch.float32
            and features.shape[1:] == (64, 48, 48)
            and not torch.is_autocast_enabled("cuda")
            and type(up := self.up) is torch.nn.ConvTranspose2d
            and (up.kernel_size, up.stride, up.padding, up.dilation, up.groups, up.padding_mode,
                up.output_padding) == ((4, 4), (2, 2), (1, 1), (1, 1), 1, 'zeros', (0, 0))
            and not (up._forward_hooks or up._forward_pre_hooks)
            and (up_weight := up.weight).dtype == torch.float32
            and up_weight.shape == (64, 48, 4, 4)
            and features.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and features.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (features.requires_grad
                or up_weight.requires_grad or any(p.requires_grad for p in self.parameters())))
        ):
            return self._forward_eager(features)
        # The mean of a convolution's outputs needs only, for each tap of its kernel, the sum
        # of the inputs which that tap meets: padding and stride decide which these are.
        tap_sums = sum_by_tap(features)
        hidden = F.linear(tap_sums.flatten(1), up_weight.transpose(0, 1).flatten(1), up.bias)
        return hidden
