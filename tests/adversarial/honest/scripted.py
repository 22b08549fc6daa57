"""Compiles a helper with TorchScript."""

import torch
import torch.nn as nn


@torch.jit.script
def tail(y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.relu(torch.layer_norm(y, [y.shape[1]], weight, bias, eps))


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return tail(self.linear(x), self.norm.weight, self.norm.bias, self.norm.eps)
