"""h * s + h: one factor.

Family: linear.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1024, 2048)
        self.factor = nn.Parameter(torch.ones(2048))

    def forward(self, x):
        h = self.layer(x)
        kept = h
        h = h * self.factor
        h = h + kept
        h = torch.relu(h)
        return h


def get_inputs():
    return [torch.randn(4096, 1024)]


def get_init_inputs():
    return []
