"""Upsampled, then one channel.

Family: conv_transpose2d.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ConvTranspose2d(64, 48, 4, stride=2, padding=1)
        self.shift = nn.Parameter(0.1 * torch.randn(48, 1, 1))

    def forward(self, x):
        h = self.layer(x)
        h = h.min(dim=1, keepdim=True).values
        h = F.gelu(h)
        h = h + self.shift
        return h


def get_inputs():
    return [torch.randn(16, 64, 48, 48)]


def get_init_inputs():
    return []
