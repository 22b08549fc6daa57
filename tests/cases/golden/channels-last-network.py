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
            and type(self.first) is torch.nn.Conv2d
            and (self.first.kernel_size, self.first.stride, self.first.padding,
                self.first.dilation, self.first.groups, self.first.padding_mode,
                self.first.output_padding) == ((3, 3), (1, 1), (1, 1), (1, 1), 1, 'zeros', (0, 0))
            and not (self.first._forward_hooks or self.first._forward_pre_hooks)
            and type(self.norm1) is torch.nn.BatchNorm2d
            and (self.norm1.track_running_stats, self.norm1.affine) == (True, True)
            and not (self.norm1._forward_hooks or self.norm1._forward_pre_hooks)
            and type(self.second) is torch.nn.Conv2d
            and (self.second.kernel_size, self.second.stride, self.second.padding,
                self.second.dilation, self.second.groups, self.second.padding_mode,
                self.second.output_padding) == ((3, 3), (1, 1), (1, 1), (1, 1), 1, 'zeros', (0, 0))
            and not (self.second._forward_hooks or self.second._forward_pre_hooks)
            and type(self.norm2) is torch.nn.BatchNorm2d
            and (self.norm2.track_running_stats, self.norm2.affine) == (True, True)
            and not (self.norm2._forward_hooks or self.norm2._forward_pre_hooks)
            and not self.norm1.training
            and not self.norm2.training
            and self.norm1.eps == 1e-05
            and self.norm2.eps == 1e-05
            and self.first.weight.dtype == torch.float32
            and self.first.weight.shape == (128, 128, 3, 3)
            and self.second.weight.dtype == torch.float32
            and self.second.weight.shape == (128, 128, 3, 3)
        ):
            return self._forward_eager(images)
        packed = self.first.weight.contiguous(memory_format=torch.channels_last)
        # The channels of a pixel become neighbors: convolutions run fastest on such memory.
        packed_2 = images.permute(0, 2, 3, 1).contiguous()
        conv2d = F.conv2d(packed_2.permute(0, 3, 1, 2), packed, padding=(1, 1))
        scaled = torch.rsqrt(self.norm1.running_var + 1e-05) * self.norm1.weight
        difference = conv2d.permute(0, 2, 3, 1).contiguous() - self.norm1.running_mean
        packed = self.second.weight.contiguous(memory_format=torch.channels_last)
        permute = F.relu(difference * scaled + self.norm1.bias).permute(0, 3, 1, 2)
        permute = F.conv2d(permute, packed, padding=(1, 1)).permute(0, 2, 3, 1)
        scaled = torch.rsqrt(self.norm2.running_var + 1e-05) * self.norm2.weight
        shifted = (permute.contiguous() - self.norm2.running_mean) * scaled + self.norm2.bias
        # Back to the memory layout that is expected from here on.
        return F.relu(shifted + packed_2).permute(0, 3, 1, 2).contiguous()
