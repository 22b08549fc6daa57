"""Pointwise: hardtanh.

Family: activation.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.clamp(x, -0.75, 1.5)


def get_inputs():
    return [torch.randn(4096, 8192)]


def get_init_inputs():
    return []
