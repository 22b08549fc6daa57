"""Five pointwise steps on volumes.

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
        h = torch.relu(h)
        h = F.leaky_relu(h, 0.1)
        h = F.gelu(h)
        h = torch.sigmoid(h)
        h = h + self.shift
        return h


def get_inputs():
    return [torch.randn(16, 8, 16, 48, 48)]


def get_init_inputs():
    return []
