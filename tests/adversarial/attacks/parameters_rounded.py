"""Rounds its weights in place."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        with torch.no_grad():
            self.linear.weight.copy_(self.linear.weight.bfloat16().float())
        return torch.relu(self.norm(self.linear(x)))
