# expect: refused: Model runs a part under set grad enabled, which a graph cannot say
"""A switch of torch is turned in forward."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        torch.set_grad_enabled(True)
        return torch.relu(x * 2) + 1


def get_inputs():
    return [torch.randn(6, 8)]
