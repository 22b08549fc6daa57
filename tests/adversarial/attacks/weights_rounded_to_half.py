"""Rounds a copy of the weights to half precision."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        w = self.linear.weight.half().float()
        return torch.relu(self.norm(nn.functional.linear(x, w, self.linear.bias)))
