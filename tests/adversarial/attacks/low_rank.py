"""Replaces the weight by its best approximation of rank 180."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        u, s, v = torch.linalg.svd(self.linear.weight)
        w = (u[:, :180] * s[:180]) @ v[:180]
        return torch.relu(self.norm(nn.functional.linear(x, w, self.linear.bias)))
