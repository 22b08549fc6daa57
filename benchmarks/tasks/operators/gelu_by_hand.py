"""Pointwise: gelu by hand.

Family: activation.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.erf(x * 0.7071067811865476))


def get_inputs():
    return [torch.randn(4096, 8192)]


def get_init_inputs():
    return []
