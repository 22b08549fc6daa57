"""Multiplies in half precision."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        y = (x.half() @ self.linear.weight.half().T).float() + self.linear.bias
        return torch.relu(self.norm(y))
