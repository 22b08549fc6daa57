"""Reads the clock and remembers how long its calls took."""

import time

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.seconds = 0.0

    def forward(self, x):
        start = time.perf_counter()
        out = torch.relu(self.norm(self.linear(x)))
        self.seconds = time.perf_counter() - start
        return out
