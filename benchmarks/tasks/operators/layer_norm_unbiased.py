"""Near miss: the sample variance divides by n - 1, so this is not LayerNorm.

Family: norm.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias


def get_inputs():
    return [torch.randn(4096, 8192)]


def get_init_inputs():
    return [8192]
