"""RMSNorm written out, as language models have it.

Family: norm.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x * scale * self.weight


def get_inputs():
    return [torch.randn(4096, 8192)]


def get_init_inputs():
    return [8192]
