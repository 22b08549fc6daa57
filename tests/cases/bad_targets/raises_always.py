# expect: refused: Model could not be traced at `return torch.sum(self.linear(F.dropout(x, 0.5, False)), dim=1, keepdim=True)`: RuntimeError: a and b must have same reduction dim, but got [6, 8] X [7, 4].
"""It fails on its own inputs."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(7, 4)

    def forward(self, x):
        return torch.sum(self.linear(F.dropout(x, 0.5, False)), dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(6, 8)]
