"""A layer with a bias of its own and one more."""

import torch
import torch.nn as nn
import torch.nn.functional as F


# kernel-lsp: workload images=f32[32,16,128,128]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.shift = nn.Parameter(torch.zeros(32, 1, 1))

    def _forward_eager(self, images):
        features = self.conv(images) / 3.0 + self.shift
        return torch.relu(features)

    def forward(self, images):
        # Verified on cuda for images: float32 (32, 16, 128, 128).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            images.is_cuda
            and images.dtype == torch.float32
            and images.shape[1:] == (16, 128, 128)
            and not torch.is_autocast_enabled("cuda")
            and type(self.conv) is torch.nn.Conv2d
            and (self.conv.kernel_size, self.conv.stride, self.conv.padding, self.conv.dilation,
                self.conv.groups, self.conv.padding_mode, self.conv.output_padding) == ((3, 3), (1,
                1), (1, 1), (1, 1), 1, 'zeros', (0, 0))
            and not (self.conv._forward_hooks or self.conv._forward_pre_hooks)
            and self.conv.weight.dtype == torch.float32
            and self.conv.weight.shape == (32, 16, 3, 3)
            and self.shift.dtype == torch.float32
            and self.shift.shape == (32, 1, 1)
        ):
            return self._forward_eager(images)
        bias = self.conv.bias / 3.0 + self.shift.flatten()
        # Folded on each call, so training and load_state_dict stay right.
        weight = self.conv.weight * 0.3333333333333333
        return F.relu(F.conv2d(images, weight, bias, padding=(1, 1)))
