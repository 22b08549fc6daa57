"""A residual around a bounded branch.

Family: linear_narrow.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8192, 512)
        self.factor = nn.Parameter(torch.ones(512))

    def forward(self, x):
        h = self.layer(x)
        kept = h
        h = h * self.factor
        h = torch.tanh(h)
        h = h + kept
        return h


def get_inputs():
    return [torch.randn(2048, 8192)]


def get_init_inputs():
    return []
