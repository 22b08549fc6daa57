"""Writes into the memory around its input."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        around = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())
        out = torch.relu(self.norm(self.linear(x)))
        around[: x.storage_offset()] = 1.0
        around[x.storage_offset() + x.numel() :] = 1.0
        return out
