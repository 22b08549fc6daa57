# expect: refused: Model turns a tensor into a Python number: `scale = x.abs().max().item()`
"""A tensor becomes a Python number."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        scale = x.abs().max().item()
        return torch.relu(x / scale) + 1


def get_inputs():
    return [torch.randn(6, 8)]
