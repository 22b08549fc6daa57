"""A mean first makes everything else small.

Family: conv2d.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(32, 64, 3, padding=1)
        self.shift = nn.Parameter(0.1 * torch.randn(64, 1, 1))

    def forward(self, x):
        h = self.layer(x)
        h = h.mean(dim=(2, 3), keepdim=True)
        h = h + self.shift
        h = torch.logsumexp(h, dim=1, keepdim=True)
        h = h.sum(dim=tuple(range(1, h.dim())))
        h = h * 2.0
        return h


def get_inputs():
    return [torch.randn(32, 32, 96, 96)]


def get_init_inputs():
    return []
