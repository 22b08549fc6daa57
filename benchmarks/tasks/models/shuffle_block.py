"""Grouped convolutions and a shuffle of channels.

Family: cnn.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.reduce = nn.Conv2d(240, 240, 1, groups=3)
        self.spatial = nn.Conv2d(240, 240, 3, padding=1, groups=240)

    def forward(self, x):
        h = torch.relu(self.reduce(x))
        n, c, height, width = h.shape
        h = h.view(n, 3, c // 3, height, width).transpose(1, 2).reshape(n, c, height, width)
        return torch.relu(x + self.spatial(h))


def get_inputs():
    return [torch.randn(32, 240, 28, 28)]


def get_init_inputs():
    return []
