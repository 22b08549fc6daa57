"""Keeps a result of every call."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)
        self.seen = []

    def forward(self, x):
        y = torch.relu(self.linear(x))
        self.seen.append(y.detach())
        return y
