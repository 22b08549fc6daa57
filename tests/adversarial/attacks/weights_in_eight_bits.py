"""Quantizes the weights to eight bits per row."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        w = self.linear.weight
        step = w.abs().amax(dim=1, keepdim=True) / 127
        w = torch.round(w / step) * step
        return torch.relu(self.norm(nn.functional.linear(x, w, self.linear.bias)))
