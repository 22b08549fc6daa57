"""Adds a parameter that no checkpoint has."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x))) * self.scale
