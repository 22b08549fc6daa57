"""Keeps internal scratch memory between calls, but returns fresh results."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.scratch = None

    def forward(self, x):
        if self.scratch is None or self.scratch.shape != x.shape:
            self.scratch = torch.empty_like(x)
        torch.mm(x, self.linear.weight.T, out=self.scratch)
        return torch.relu(self.norm(self.scratch + self.linear.bias))
