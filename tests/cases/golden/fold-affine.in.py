"""A layer with a bias of its own and one more."""

import torch
import torch.nn as nn


# kernel-lsp: workload images=f32[32,16,128,128]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.shift = nn.Parameter(torch.zeros(32, 1, 1))

    def forward(self, images):
        features = self.conv(images) / 3.0 + self.shift
        return torch.relu(features)
