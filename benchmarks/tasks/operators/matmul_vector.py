"""A matrix times one vector.

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
    return [torch.randn(32768, 8192), torch.randn(8192, 1)]


def get_init_inputs():
    return []
