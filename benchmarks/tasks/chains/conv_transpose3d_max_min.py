"""One channel, then pointwise.

Family: conv_transpose3d.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ConvTranspose3d(16, 24, 3, stride=2, padding=1)

    def forward(self, x):
        h = self.layer(x)
        h = h.max(dim=1, keepdim=True).values
        h = h - 0.3
        h = F.softplus(h)
        return h


def get_inputs():
    return [torch.randn(8, 16, 12, 24, 24)]


def get_init_inputs():
    return []
