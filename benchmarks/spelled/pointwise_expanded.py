"""A chain with an expanded parameter.

Family: pointwise.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.rand(1, 256, 1, 1))

    def forward(self, x):
        return torch.tanh(x + self.b.expand_as(x)) * torch.sigmoid(x)


def get_inputs():
    return [torch.randn(32, 256, 56, 56)]


def get_init_inputs():
    return []
