"""Evaluates in chunks of rows."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.cat([torch.relu(self.norm(self.linear(part))) for part in x.chunk(4)])
