# expect: refused: Model makes a tensor whose size depends on values: `return torch.relu(x[x > 0]) * 2 + 1`
"""The size of the result depends on the values."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.relu(x[x > 0]) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8)]
