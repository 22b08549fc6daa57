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
            and type(conv := self.conv) is torch.nn.Conv2d
            and (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups,
                conv.padding_mode, conv.output_padding) == ((3, 3), (1, 1), (1, 1), (1, 1), 1,
                'zeros', (0, 0))
            and not (conv._forward_hooks or conv._forward_pre_hooks)
            and (conv_weight := conv.weight).dtype == torch.float32
            and conv_weight.shape == (32, 16, 3, 3)
            and (shift := self.shift).dtype == torch.float32
            and shift.shape == (32, 1, 1)
        ):
            return self._forward_eager(images)
        bias = conv.bias / 3.0 + shift.flatten()
        # Folded on each call, so training and load_state_dict stay right.
        weight = conv_weight * 0.3333333333333333
        return F.relu(F.conv2d(images, weight, bias, padding=(1, 1)))
