"""Reads the parameter's data, so no gradient reaches it."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        return torch.relu(torch.nn.functional.linear(x, self.linear.weight.data, self.linear.bias))
