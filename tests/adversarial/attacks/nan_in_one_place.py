"""Poisons one element only."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        out = torch.relu(self.norm(self.linear(x)))
        out[0, 0] = float("nan")
        return out
