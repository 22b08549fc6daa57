"""A group norm over features.

Family: linear.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1024, 2048)
        self.groups = nn.GroupNorm(8, 2048)

    def forward(self, x):
        h = self.layer(x)
        h = self.groups(h)
        h = torch.clamp(h, -0.8, 1.2)
        return h


def get_inputs():
    return [torch.randn(4096, 1024)]


def get_init_inputs():
    return []
