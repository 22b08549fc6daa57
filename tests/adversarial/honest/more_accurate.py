"""Computes in float64 inside."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        y = nn.functional.linear(x.double(), self.linear.weight.double(), self.linear.bias.double())
        y = nn.functional.layer_norm(
            y, y.shape[-1:], self.norm.weight.double(), self.norm.bias.double(), self.norm.eps
        )
        return torch.relu(y).float()
