"""Near miss: batch statistics, then centered.

Family: conv_transpose3d.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ConvTranspose3d(16, 24, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm3d(24)

    def forward(self, x):
        h = self.layer(x)
        h = self.norm(h)
        h = h - h.mean(dim=1, keepdim=True)
        return h


def get_inputs():
    return [torch.randn(8, 16, 12, 24, 24)]


def get_init_inputs():
    return []
