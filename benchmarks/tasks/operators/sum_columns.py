"""Column sums: the strided direction.

Family: reduction.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return x.sum(dim=0)


def get_inputs():
    return [torch.randn(4096, 8192)]


def get_init_inputs():
    return []
