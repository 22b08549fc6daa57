"""An activation, a pool and a bias, as at the end of a convolution block."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    """tanh, accurate near zero too: (1 - e) / (1 + e) alone cancels there."""
    e = tl.exp(-2.0 * tl.abs(x))  # never overflows, unlike exp(2x)
    large = (1.0 - e) / (1.0 + e)
    s = x * x
    series = 1.0 + s * (-0.3333333333 + s * (0.1333333333 + s * (-0.0539682540 + s * 0.0218694885)))
    return tl.where(tl.abs(x) < 0.25, x * series, tl.where(x < 0.0, -large, large))


@triton.jit
def _fused_add_leaky_relu_max_pool2d_tanh_kernel(
    features_ptr, shift_ptr, out_ptr, n_elements, n_channels, height: tl.constexpr, width: tl.constexpr,
    out_height: tl.constexpr, out_width: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    """Each program computes BLOCK_SIZE consecutive outputs."""
    start = tl.program_id(0).to(tl.int64) * BLOCK_SIZE  # int64: offsets can pass 2**31
    mask = start + tl.arange(0, BLOCK_SIZE) < n_elements  # the last block is not full
    n_places = out_height * out_width
    # Places are resolved in 32 bits: 64-bit division is many times slower.
    place = (start % n_places).to(tl.int32) + tl.arange(0, BLOCK_SIZE)
    plane = start // n_places + place // n_places
    spot = place % n_places
    row = (spot // out_width) * 3 - 1
    column = (spot % out_width) * 3 - 1
    channel = plane % n_channels
    base = plane * (height * width)
    best = tl.full([BLOCK_SIZE], float("-inf"), tl.float32)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            row_in = row + i
            row_ok = (row_in >= 0) & (row_in < height)
            column_in = column + j
            column_ok = (column_in >= 0) & (column_in < width)
            inside = mask & row_ok & column_ok  # not the padding
            tap = row_in * width + column_in
            features = tl.load(features_ptr + base + tap, mask=inside)
            shift = tl.load(shift_ptr + channel, mask=inside)
            shifted = features + shift
            active = tl.where(shifted > 0.0, shifted, shifted * 0.1)
            kept = tl.where(inside, active, float("-inf"))
            best = tl.maximum(best, kept, propagate_nan=tl.PropagateNan.ALL)  # as torch does
    tanh = _tanh(best)
    tl.store(out_ptr + start + tl.arange(0, BLOCK_SIZE), tanh, mask=mask)


def fused_add_leaky_relu_max_pool2d_tanh(features, shift):
    """Maximum over windows of 3 x 3 of add, leaky_relu, then tanh.

    features: float32 (n_planes, height, width)
    shift: float32 (n_channels,)
    out: float32 (n_planes, out_height, out_width)
    """
    features, shift = features.contiguous(), shift.contiguous()
    height, width = features.shape[-2:]
    out_height, out_width = 38, 38
    shape = (*features.shape[:-2], out_height, out_width)
    out = torch.empty(shape, dtype=torch.float32, device=features.device)
    n_channels = features.shape[-3]
    if out.numel() > 0:  # a grid of zero programs cannot be launched
        grid = ((out.numel() + 255) // 256,)
        _fused_add_leaky_relu_max_pool2d_tanh_kernel[grid](
            features, shift, out, out.numel(), n_channels, height, width, out_height, out_width,
            BLOCK_SIZE=256, num_warps=4,
        )
    return out


# kernel-lsp: workload features=f32[32,64,112,112]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(64, 1, 1))

    def _forward_eager(self, features):
        active = F.leaky_relu(features + self.shift, 0.1)
        pooled = F.max_pool2d(active, 3, stride=3, padding=1)
        return torch.tanh(pooled)

    def forward(self, features):
        # Verified on cuda for features: float32 (32, 64, 112, 112).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            features.is_cuda
            and features.dtype == torch.float32
            and features.shape[1:] == (64, 112, 112)
            and not torch.is_autocast_enabled("cuda")
            and (shift := self.shift).dtype == torch.float32
            and shift.shape == (64, 1, 1)
            and features.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and features.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (features.requires_grad or shift.requires_grad))
        ):
            return self._forward_eager(features)
        return fused_add_leaky_relu_max_pool2d_tanh(features, shift)
