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
            and type(conv := self.conv) is torch.nn.Conv2d
            and (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups,
                conv.padding_mode, conv.output_padding) == ((3, 3), (1, 1), (1, 1), (1, 1), 1,
                'zeros', (0, 0))
            and not (conv._forward_hooks or conv._forward_pre_hooks)
            and type(norm := self.norm) is torch.nn.InstanceNorm2d
            and (norm.track_running_stats, norm.affine) == (False, True)
            and not (norm._forward_hooks or norm._forward_pre_hooks)
            and norm.training
            and norm.eps == 1e-05
            and norm.momentum == 0.1
            and (conv_weight := conv.weight).dtype == torch.float32
            and conv_weight.shape == (64, 16, 3, 3)
        ):
            return self._forward_eager(images)
        # Zero, unless the shift is infinite or NaN: then its channel is NaN, as it was.
        shift = conv.bias - conv.bias
        bias = norm.bias + shift
        # A shift before instance_norm is subtracted with the mean, so it is left out.
        instance_norm = F.instance_norm(F.conv2d(images, conv_weight, padding=(1, 1)), weight=norm.weight, bias=bias, use_input_stats=True, momentum=0.1, eps=1e-05)
        return instance_norm
