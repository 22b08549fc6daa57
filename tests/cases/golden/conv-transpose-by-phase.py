"""Upsampling by two."""

import torch.nn as nn
import torch
import triton
import triton.language as tl
import torch.nn.functional as F


@triton.jit
def _interleave_phases_kernel(phases_ptr, bias_ptr, out_ptr, n_planes, BLOCK_SIZE: tl.constexpr):
    """Each program writes a block of one channel of one sample."""
    plane = tl.program_id(1).to(tl.int64) * 65535 + tl.program_id(2)  # offsets can pass 2**31
    if plane >= n_planes:
        return
    start = plane * 16384
    position = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = position < 16384  # the last block is not full
    out_h = position // 128 + 1
    out_w = position % 128 + 1
    phase = (out_h % 2) * 2 + out_w % 2  # which taps of the kernel reach this position
    place = (out_h // 2) * 65 + out_w // 2
    reached = inside  # some tap reaches every position
    source = phases_ptr + (plane * 4 + phase) * 4225 + place
    tap_sum = tl.load(source, mask=reached, other=0.0)
    bias = tl.load(bias_ptr + plane % 32)
    conv_transpose2d = tap_sum + bias
    tl.store(out_ptr + start + position, conv_transpose2d, mask=inside)


def interleave_phases(phases, bias):
    """Put 4 phases in place, add the bias.

    phases: float32 (n, 32 * 4, 65, 65)
    bias: float32 (32 values)
    out: float32 (n, 32, 128, 128)
    """
    phases = phases.contiguous()
    bias = bias.contiguous()
    n_planes = phases.shape[0] * 32
    out = phases.new_empty((phases.shape[0], 32, 128, 128), dtype=torch.float32)
    if n_planes > 0:  # a grid of zero programs cannot be launched
        grid = (16, (n_planes + 65534) // 65535, min(n_planes, 65535))
        _interleave_phases_kernel[grid](phases, bias, out, n_planes, BLOCK_SIZE=1024, num_warps=4)
    return out


# kernel-lsp: workload features=f32[16,64,64,64]
class Upsampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(64, 32, kernel_size=4, stride=2, padding=1)

    def _forward_eager(self, features):
        return self.up(features)

    def forward(self, features):
        # Verified on cuda for features: float32 (16, 64, 64, 64).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            features.is_cuda
            and features.dtype == torch.float32
            and features.shape[1:] == (64, 64, 64)
            and not torch.is_autocast_enabled("cuda")
            and type(up := self.up) is torch.nn.ConvTranspose2d
            and (up.kernel_size, up.stride, up.padding, up.dilation, up.groups, up.padding_mode,
                up.output_padding) == ((4, 4), (2, 2), (1, 1), (1, 1), 1, 'zeros', (0, 0))
            and not (up._forward_hooks or up._forward_pre_hooks)
            and (up_weight := up.weight).dtype == torch.float32
            and up_weight.shape == (64, 32, 4, 4)
            and features.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and features.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (features.requires_grad
                or up_weight.requires_grad or any(p.requires_grad for p in self.parameters())))
        ):
            return self._forward_eager(features)
        taps = up_weight.reshape(1, 64, 32, 2, 2, 2, 2).permute(0, 2, 4, 6, 1, 3, 5)
        # Each output is reached by the taps of one phase only: (position + padding) % stride.
        # So every phase is a small stride-1 convolution, and all of them are one with more
        # channels.
        phase_weight = torch.flip(taps.reshape(128, 64, 2, 2), dims=(2, 3))
        by_phase = F.conv2d(features, phase_weight, padding=(1, 1))
        return interleave_phases(by_phase, up.bias)
