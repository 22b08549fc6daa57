"""A long inner dimension and a small result.

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
    return [torch.randn(128, 262144), torch.randn(262144, 128)]


def get_init_inputs():
    return []
