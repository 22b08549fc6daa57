"""Normalizes with another epsilon."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.relu(
            nn.functional.layer_norm(
                self.linear(x), self.norm.normalized_shape, self.norm.weight, self.norm.bias, 1e-3
            )
        )
