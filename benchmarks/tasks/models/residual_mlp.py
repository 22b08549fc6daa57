"""Residual layers with a norm in front.

Family: mlp.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(1024) for _ in range(4))
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(4))

    def forward(self, x):
        for norm, layer in zip(self.norms, self.layers):
            x = x + F.gelu(layer(norm(x)))
        return x


def get_inputs():
    return [torch.randn(4096, 1024)]


def get_init_inputs():
    return []
