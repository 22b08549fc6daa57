"""Looks attributes up by constant names."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        relu = getattr(torch, "relu", None) or torch.nn.functional.relu
        linear = getattr(self, "linear")  # noqa: B009
        return relu(self.norm(linear(x)))
