"""Works in place on its own temporaries."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        y = self.linear(x).clone()
        y -= y.mean(dim=-1, keepdim=True)
        var = (y * y).mean(dim=-1, keepdim=True)
        y *= torch.rsqrt(var.add_(self.norm.eps))
        return y.mul_(self.norm.weight).add_(self.norm.bias).clamp_(min=0)
