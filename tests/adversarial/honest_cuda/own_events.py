"""Measures itself with events of its own."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.last = None

    def forward(self, x):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        out = torch.relu(self.norm(self.linear(x)))
        stop.record()
        self.last = (start, stop)
        return out
