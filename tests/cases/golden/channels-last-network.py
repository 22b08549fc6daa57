"""A residual block at inference."""

import torch
import torch.nn as nn
import torch.nn.functional as F


# kernel-lsp: workload images=f32[64,128,56,56] eval
class Block(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def _forward_eager(self, images):
        hidden = torch.relu(self.norm1(self.first(images)))
        return torch.relu(self.norm2(self.second(hidden)) + images)

    def forward(self, images):
        # Verified on cuda for images: float32 (64, 128, 56, 56).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            images.is_cuda
            and images.dtype == torch.float32
            and images.shape[1:] == (128, 56, 56)
            and not torch.is_autocast_enabled("cuda")
            and type(first := self.first) is torch.nn.Conv2d
            and (first.kernel_size, first.stride, first.padding, first.dilation, first.groups,
                first.padding_mode, first.output_padding) == ((3, 3), (1, 1), (1, 1), (1, 1), 1,
                'zeros', (0, 0))
            and not (first._forward_hooks or first._forward_pre_hooks)
            and type(norm1 := self.norm1) is torch.nn.BatchNorm2d
            and (norm1.track_running_stats, norm1.affine) == (True, True)
            and not (norm1._forward_hooks or norm1._forward_pre_hooks)
            and type(second := self.second) is torch.nn.Conv2d
            and (second.kernel_size, second.stride, second.padding, second.dilation, second.groups,
                second.padding_mode, second.output_padding) == ((3, 3), (1, 1), (1, 1), (1, 1), 1,
                'zeros', (0, 0))
            and not (second._forward_hooks or second._forward_pre_hooks)
            and type(norm2 := self.norm2) is torch.nn.BatchNorm2d
            and (norm2.track_running_stats, norm2.affine) == (True, True)
            and not (norm2._forward_hooks or norm2._forward_pre_hooks)
            and not norm1.training
            and not norm2.training
            and norm1.eps == 1e-05
            and norm2.eps == 1e-05
            and (first_weight := first.weight).dtype == torch.float32
            and first_weight.shape == (128, 128, 3, 3)
            and (second_weight := second.weight).dtype == torch.float32
            and second_weight.shape == (128, 128, 3, 3)
        ):
            return self._forward_eager(images)
        packed = first_weight.contiguous(memory_format=torch.channels_last)
        # The channels of a pixel become neighbors: convolutions run fastest on such memory.
        packed_2 = images.permute(0, 2, 3, 1).contiguous()
        conv2d = F.conv2d(packed_2.permute(0, 3, 1, 2), packed, padding=(1, 1))
        scaled = torch.rsqrt(norm1.running_var + 1e-05) * norm1.weight
        difference = conv2d.permute(0, 2, 3, 1).contiguous() - norm1.running_mean
        packed = second_weight.contiguous(memory_format=torch.channels_last)
        permute = F.relu(difference * scaled + norm1.bias).permute(0, 3, 1, 2)
        permute = F.conv2d(permute, packed, padding=(1, 1)).permute(0, 2, 3, 1)
        scaled = torch.rsqrt(norm2.running_var + 1e-05) * norm2.weight
        shifted = (permute.contiguous() - norm2.running_mean) * scaled + norm2.bias
        # Back to the memory layout that is expected from here on.
        return F.relu(shifted + packed_2).permute(0, 3, 1, 2).contiguous()
