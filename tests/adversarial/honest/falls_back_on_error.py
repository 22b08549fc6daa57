"""Tries a fused form and falls back when torch has none."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        try:
            y = torch.ops.aten.linear_that_is_fused(x, self.linear.weight)
        except AttributeError:
            y = self.linear(x)
        return torch.relu(self.norm(y))
