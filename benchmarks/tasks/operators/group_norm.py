"""GroupNorm over image channels.

Family: norm.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.GroupNorm(8, size)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(32, 64, 128, 128)]


def get_init_inputs():
    return [64]
