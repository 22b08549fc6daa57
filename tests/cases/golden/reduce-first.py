"""An activation right before its pool."""

import torch
import torch.nn as nn
import torch.nn.functional as F


# kernel-lsp: workload images=f32[32,16,128,128]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 32, kernel_size=3, padding=1)

    def _forward_eager(self, images):
        features = torch.tanh(self.conv(images)) * 2.0
        return F.max_pool2d(features, 2)

    def forward(self, images):
        # Verified on cuda for images: float32 (32, 16, 128, 128).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            images.is_cuda
            and images.dtype == torch.float32
            and images.shape[1:] == (16, 128, 128)
            and not torch.is_autocast_enabled("cuda")
            and (conv_weight := self.conv.weight).dtype == torch.float32
            and conv_weight.shape == (32, 16, 3, 3)
            and not (torch.is_grad_enabled() and (images.requires_grad
                or conv_weight.requires_grad or any(p.requires_grad for p in self.parameters())))
        ):
            return self._forward_eager(images)
        conv2d = self.conv(images)
        # The largest stays the largest under tanh, mul: reduce first, then work on fewer elements.
        pooled = F.max_pool2d(conv2d, kernel_size=(2, 2))
        return torch.tanh(pooled) * 2.0
