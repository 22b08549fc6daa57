"""Writes the product as an einsum."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        y = torch.einsum("bi,oi->bo", x, self.linear.weight) + self.linear.bias
        return torch.relu(self.norm(y))
