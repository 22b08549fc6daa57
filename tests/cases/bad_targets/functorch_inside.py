# expect: refused: Model runs a part under set grad enabled, which a graph cannot say
"""A gradient is computed inside of forward."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        slope = torch.func.grad(lambda t: (t * t).sum())(x)
        return torch.relu(slope * 2) + 1


def get_inputs():
    return [torch.randn(6, 8)]
