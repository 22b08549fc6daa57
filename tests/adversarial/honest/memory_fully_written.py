"""Allocates with torch.empty and writes every element."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        out = torch.empty(x.shape[0], self.linear.out_features, dtype=x.dtype, device=x.device)
        torch.mm(x, self.linear.weight.T, out=out)
        out += self.linear.bias
        return torch.relu_(self.norm(out))
