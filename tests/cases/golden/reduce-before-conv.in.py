"""A decoder whose output is only averaged."""

import torch
import torch.nn as nn


# kernel-lsp: workload features=f32[32,64,48,48]
class Descriptor(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(64, 48, kernel_size=4, stride=2, padding=1)

    def forward(self, features):
        upsampled = self.up(features)
        return upsampled.mean(dim=(2, 3))
