"""Two affine steps that are one.

Family: matmul.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2048, 1024, bias=False)
        self.factor = nn.Parameter(torch.ones(1024))
        self.norm = nn.BatchNorm1d(1024).eval()

    def forward(self, x):
        h = x @ self.layer.weight.T
        h = h * self.factor
        h = self.norm(h)
        return h


def get_inputs():
    return [torch.randn(4096, 2048)]


def get_init_inputs():
    return []
