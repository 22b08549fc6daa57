"""Pointwise, then a pool.

Family: conv2d.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(32, 64, 3, padding=1)
        self.factor = nn.Parameter(torch.ones(64, 1, 1))
        self.shift = nn.Parameter(0.1 * torch.randn(64, 1, 1))

    def forward(self, x):
        h = self.layer(x)
        h = torch.tanh(h)
        h = h * self.factor
        h = h + self.shift
        h = F.max_pool2d(h, 2)
        return h


def get_inputs():
    return [torch.randn(32, 32, 96, 96)]


def get_init_inputs():
    return []
