"""A matrix times a number.

Family: matmul.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, a):
        return a * self.factor


def get_inputs():
    return [torch.randn(4096, 8192)]


def get_init_inputs():
    return [1.7]
