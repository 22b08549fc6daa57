"""A stem that averages right after its convolution."""

import torch
import torch.nn as nn
import torch.nn.functional as F


# kernel-lsp: workload images=f32[64,3,128,128]
class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 32, kernel_size=3)

    def forward(self, images):
        features = self.conv(images)
        return F.avg_pool2d(features, 2)
