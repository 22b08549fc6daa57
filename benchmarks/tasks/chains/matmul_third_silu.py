"""A scaled product.

Family: matmul.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2048, 1024, bias=False)

    def forward(self, x):
        h = x @ self.layer.weight.T
        h = h / 3.0
        h = h * torch.sigmoid(h)
        return h


def get_inputs():
    return [torch.randn(4096, 2048)]


def get_init_inputs():
    return []
