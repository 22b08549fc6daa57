"""Drops one row in one call out of six."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        out = torch.relu(self.norm(self.linear(x)))
        if torch.rand(()) < 1 / 6:
            out[-1] = 0
        return out
