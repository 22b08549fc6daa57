"""Constants that are one constant.

Family: linear_narrow.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8192, 512)
        self.shift = nn.Parameter(0.1 * torch.randn(512))

    def forward(self, x):
        h = self.layer(x)
        h = h / 3.0
        h = h * 2.0
        h = h / 3.0
        h = h + self.shift
        return h


def get_inputs():
    return [torch.randn(2048, 8192)]


def get_init_inputs():
    return []
