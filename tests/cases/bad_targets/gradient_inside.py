# expect: refused: Model runs a part under set grad enabled, which a graph cannot say
"""Autograd runs inside of forward."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        with torch.enable_grad():
            t = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad((t * t).sum(), t)
        return torch.relu(slope * 2) + 1


def get_inputs():
    return [torch.randn(6, 8)]
