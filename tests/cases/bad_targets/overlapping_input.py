# expect: rewritten
"""Elements of the input lie on top of each other: they are only read, each where it lies."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.relu(x * 2) + 1


def get_inputs():
    return [torch.randn(8).expand(6, 8)]
