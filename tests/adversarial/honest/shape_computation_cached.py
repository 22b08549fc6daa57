"""Caches a computation on shapes, which is no result."""

import functools

import torch
import torch.nn as nn


@functools.lru_cache(maxsize=32)
def blocks(shape):
    return max(1, shape[0] // 2)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        rows = blocks(tuple(x.shape))
        parts = [self.linear(part) for part in x.split(rows)]
        return torch.relu(self.norm(torch.cat(parts)))
