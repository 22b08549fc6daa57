"""Upsampling with a gate behind it."""

import torch
import torch.nn as nn
import torch.nn.functional as F


# kernel-lsp: workload features=f32[16,64,64,64]
class GatedUpsampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(64, 32, kernel_size=4, stride=2, padding=1)

    def _forward_eager(self, features):
        upsampled = self.up(features)
        return torch.tanh(upsampled) * 0.5

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
        ):
            return self._forward_eager(features)
        weighted = F.conv_transpose2d(features, up_weight, stride=(2, 2), padding=(1, 1))
        # cuDNN adds a bias in a pass of its own: here it is part of what follows.
        upsampled = weighted + up.bias.view(-1, 1, 1)
        return torch.tanh(upsampled) * 0.5
