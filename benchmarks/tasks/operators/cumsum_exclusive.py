"""Exclusive running sums.

Family: scan.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.cumsum(x, dim=1) - x


def get_inputs():
    return [torch.randn(2048, 8192)]


def get_init_inputs():
    return []
