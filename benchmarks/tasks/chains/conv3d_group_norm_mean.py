"""The mean of a normalized volume.

Family: conv3d.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv3d(8, 24, 3, padding=1)
        self.groups = nn.GroupNorm(8, 24)

    def forward(self, x):
        h = self.layer(x)
        h = self.groups(h)
        h = h.mean(dim=(2, 3, 4), keepdim=True)
        return h


def get_inputs():
    return [torch.randn(16, 8, 16, 48, 48)]


def get_init_inputs():
    return []
