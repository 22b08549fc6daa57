# expect: refused: `self.weight.mul_(0.9)` changes a tensor in place that others can see
"""It changes its own weight."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(0.9)
        return torch.relu(x * self.weight) + 1


def get_inputs():
    return [torch.randn(6, 8)]
