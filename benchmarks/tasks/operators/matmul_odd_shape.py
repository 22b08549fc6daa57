"""No dimension is a multiple of eight.

Family: matmul.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(2047, 1531), torch.randn(1531, 1999)]


def get_init_inputs():
    return []
