"""A stem that averages right after its convolution."""

import torch
import torch.nn as nn
import torch.nn.functional as F


# kernel-lsp: workload images=f32[64,3,128,128]
class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 32, kernel_size=3)

    def _forward_eager(self, images):
        features = self.conv(images)
        return F.avg_pool2d(features, 2)

    def forward(self, images):
        # Verified on cuda for images: float32 (64, 3, 128, 128).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            images.is_cuda
            and images.dtype == torch.float32
            and images.shape[1:] == (3, 128, 128)
            and not torch.is_autocast_enabled("cuda")
            and type(conv := self.conv) is torch.nn.Conv2d
            and (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups,
                conv.padding_mode, conv.output_padding) == ((3, 3), (1, 1), (0, 0), (1, 1), 1,
                'zeros', (0, 0))
            and not (conv._forward_hooks or conv._forward_pre_hooks)
            and (conv_weight := conv.weight).dtype == torch.float32
            and conv_weight.shape == (32, 3, 3, 3)
        ):
            return self._forward_eager(images)
        # Averaging the outputs of a stride-1 convolution averages its shifted kernels.
        weight = F.avg_pool2d(F.pad(conv_weight, pad=(1, 1, 1, 1)), kernel_size=(2, 2), stride=(1, 1))
        return F.conv2d(images, weight, conv.bias, stride=(2, 2))
