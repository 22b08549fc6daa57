"""A product, a gate, a bias.

Family: matmul.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2048, 1024, bias=False)
        self.shift = nn.Parameter(0.1 * torch.randn(1024))

    def forward(self, x):
        h = x @ self.layer.weight.T
        h = h * torch.sigmoid(h)
        h = h + self.shift
        return h


def get_inputs():
    return [torch.randn(4096, 2048)]


def get_init_inputs():
    return []
