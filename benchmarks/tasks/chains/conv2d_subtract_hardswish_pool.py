"""A pool between activations.

Family: conv2d.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(32, 64, 3, padding=1)

    def forward(self, x):
        h = self.layer(x)
        h = h - 0.3
        h = F.hardswish(h)
        h = F.max_pool2d(h, 2)
        h = F.mish(h)
        return h


def get_inputs():
    return [torch.randn(32, 32, 96, 96)]


def get_init_inputs():
    return []
