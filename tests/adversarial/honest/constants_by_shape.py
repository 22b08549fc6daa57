"""Keeps constants by shape, dtype and device."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.ones = {}

    def forward(self, x):
        key = (x.shape[1], x.dtype, x.device)
        if key not in self.ones:
            self.ones[key] = torch.full(
                (x.shape[1],), 1.0 / x.shape[1], dtype=x.dtype, device=x.device
            )
        y = self.linear(x)
        mean = (y @ self.ones[key]).unsqueeze(-1)
        var = ((y - mean) ** 2 @ self.ones[key]).unsqueeze(-1)
        y = (y - mean) * torch.rsqrt(var + self.norm.eps)
        return torch.relu(y * self.norm.weight + self.norm.bias)
