"""Upsampling with a gate behind it."""

import torch
import torch.nn as nn


# kernel-lsp: workload features=f32[16,64,64,64]
class GatedUpsampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(64, 32, kernel_size=4, stride=2, padding=1)

    def forward(self, features):
        upsampled = self.up(features)
        return torch.tanh(upsampled) * 0.5
