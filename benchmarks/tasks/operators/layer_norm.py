"""LayerNorm over the last dimension.

Family: norm.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(4096, 8192)]


def get_init_inputs():
    return [8192]
