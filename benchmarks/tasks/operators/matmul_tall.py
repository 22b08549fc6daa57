"""A tall matrix times a small one.

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
    return [torch.randn(65536, 64), torch.randn(64, 64)]


def get_init_inputs():
    return []
