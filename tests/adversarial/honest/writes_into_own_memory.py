"""Writes into memory that it has allocated, by out=."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        out = x.new_empty(x.shape[0], self.linear.out_features)
        torch.addmm(self.linear.bias, x, self.linear.weight.T, out=out)
        return torch.clamp(self.norm(out), min=0)
