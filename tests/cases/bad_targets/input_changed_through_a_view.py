# expect: refused: `x[:, 0] = 0` changes a tensor in place that others can see
"""It changes a part of what it is given."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        x[:, 0] = 0
        return torch.relu(x) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8)]
