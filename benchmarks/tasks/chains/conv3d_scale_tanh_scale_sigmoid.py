"""Pointwise with two vectors.

Family: conv3d.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv3d(8, 24, 3, padding=1)
        self.factor = nn.Parameter(torch.ones(24, 1, 1, 1))
        self.shift = nn.Parameter(0.1 * torch.randn(24, 1, 1, 1))

    def forward(self, x):
        h = self.layer(x)
        h = h * self.factor
        h = torch.tanh(h)
        h = h + self.shift
        h = torch.sigmoid(h)
        return h


def get_inputs():
    return [torch.randn(16, 8, 16, 48, 48)]


def get_init_inputs():
    return []
