"""Splits the product along its inner dimension."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        w = self.linear.weight
        y = (
            sum(x[:, i : i + 48] @ w[:, i : i + 48].T for i in range(0, x.shape[1], 48))
            + self.linear.bias
        )
        return torch.relu(self.norm(y))
