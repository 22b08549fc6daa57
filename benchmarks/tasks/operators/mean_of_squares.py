"""One number of a whole tensor.

Family: reduction.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return x.square().mean()


def get_inputs():
    return [torch.randn(4096, 8192)]


def get_init_inputs():
    return []
