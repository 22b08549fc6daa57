"""Pointwise on a small output: the product is the time.

Family: linear_narrow.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8192, 512)
        self.shift = nn.Parameter(0.1 * torch.randn(512))

    def forward(self, x):
        h = self.layer(x)
        h = F.hardswish(h)
        h = h + self.shift
        h = torch.relu(h)
        return h


def get_inputs():
    return [torch.randn(2048, 8192)]


def get_init_inputs():
    return []
