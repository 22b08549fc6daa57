"""A bias that the norm subtracts again."""

import torch
import torch.nn as nn


# kernel-lsp: workload images=f32[32,16,128,128]
class Stylizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 64, kernel_size=3, padding=1)
        self.norm = nn.InstanceNorm2d(64, affine=True)

    def forward(self, images):
        features = self.conv(images)
        return self.norm(features)
