"""A chain over a transposed tensor.

Family: pointwise.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.rand(768))

    def forward(self, x):
        y = x.transpose(1, 2) * self.s
        return F.gelu(y) + y


def get_inputs():
    return [torch.randn(32, 768, 1024)]


def get_init_inputs():
    return []
