"""A bias that the norm subtracts again."""

import torch
import torch.nn as nn
import torch.nn.functional as F


# kernel-lsp: workload images=f32[32,16,128,128]
class Stylizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 64, kernel_size=3, padding=1)
        self.norm = nn.InstanceNorm2d(64, affine=True)

    def _forward_eager(self, images):
        features = self.conv(images)
        return self.norm(features)

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
            and type(self.norm) is torch.nn.InstanceNorm2d
            and (self.norm.track_running_stats, self.norm.affine) == (False, True)
            and not (self.norm._forward_hooks or self.norm._forward_pre_hooks)
            and self.norm.training
            and self.norm.eps == 1e-05
            and self.norm.momentum == 0.1
            and self.conv.weight.dtype == torch.float32
            and self.conv.weight.shape == (64, 16, 3, 3)
        ):
            return self._forward_eager(images)
        # Zero, unless the shift is infinite or NaN: then its channel is NaN, as it was.
        shift = self.conv.bias - self.conv.bias
        bias = self.norm.bias + shift
        # A shift before instance_norm is subtracted with the mean, so it is left out.
        instance_norm = F.instance_norm(F.conv2d(images, self.conv.weight, padding=(1, 1)), weight=self.norm.weight, bias=bias, use_input_stats=True, momentum=0.1, eps=1e-05)
        return instance_norm
