"""A convolution and the batch norm behind it, at inference."""

import torch
import torch.nn as nn
import torch.nn.functional as F


# kernel-lsp: workload images=f32[256,3,64,64] eval
class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, kernel_size=3, bias=False)
        self.norm = nn.BatchNorm2d(64)

    def _forward_eager(self, images):
        return self.norm(self.conv(images))

    def forward(self, images):
        # Verified on cuda for images: float32 (256, 3, 64, 64).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            images.is_cuda
            and images.dtype == torch.float32
            and images.shape[1:] == (3, 64, 64)
            and not torch.is_autocast_enabled("cuda")
            and type(conv := self.conv) is torch.nn.Conv2d
            and (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups,
                conv.padding_mode, conv.output_padding) == ((3, 3), (1, 1), (0, 0), (1, 1), 1,
                'zeros', (0, 0))
            and not (conv._forward_hooks or conv._forward_pre_hooks)
            and type(norm := self.norm) is torch.nn.BatchNorm2d
            and (norm.track_running_stats, norm.affine) == (True, True)
            and not (norm._forward_hooks or norm._forward_pre_hooks)
            and not norm.training
            and norm.eps == 1e-05
            and (conv_weight := conv.weight).dtype == torch.float32
            and conv_weight.shape == (64, 3, 3, 3)
        ):
            return self._forward_eager(images)
        # Batch norm in eval mode is y * scale + shift, so it moves into the layer's weights.
        # Folded on each call: load_state_dict and fine-tuning stay right.
        scale = norm.weight * torch.rsqrt(norm.running_var + 1e-05)
        weight = conv_weight * scale.view(-1, 1, 1, 1)
        shift = -norm.running_mean * scale + norm.bias
        return F.conv2d(images, weight, shift)
