"""A convolution and the batch norm behind it, at inference."""

import torch
import torch.nn as nn


# kernel-lsp: workload images=f32[256,3,64,64] eval
class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, kernel_size=3, bias=False)
        self.norm = nn.BatchNorm2d(64)

    def forward(self, images):
        return self.norm(self.conv(images))
