"""Keeps its parameters under other names, so trained weights do not load."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.first = nn.Linear(features, features)
        self.second = nn.LayerNorm(features)

    def forward(self, x):
        return torch.relu(self.second(self.first(x)))
