# expect: refused: `x.mul_(2)` changes a tensor in place that others can see
"""It changes what it is given."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        x.mul_(2)
        return torch.relu(x) + 1


def get_inputs():
    return [torch.randn(6, 8)]
