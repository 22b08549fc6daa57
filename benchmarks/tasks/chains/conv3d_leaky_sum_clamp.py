"""A bias between activations.

Family: conv3d.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv3d(8, 24, 3, padding=1)
        self.shift = nn.Parameter(0.1 * torch.randn(24, 1, 1, 1))

    def forward(self, x):
        h = self.layer(x)
        h = F.leaky_relu(h, 0.1)
        h = h + self.shift
        h = torch.clamp(h, -0.8, 1.2)
        h = F.gelu(h)
        return h


def get_inputs():
    return [torch.randn(16, 8, 16, 48, 48)]


def get_init_inputs():
    return []
