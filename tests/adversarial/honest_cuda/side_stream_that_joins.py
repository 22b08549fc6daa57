"""Computes on a side stream and lets the caller's stream wait for it."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.stream = torch.cuda.Stream()

    def forward(self, x):
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            out = torch.relu(self.norm(self.linear(x)))
        here.wait_stream(self.stream)
        out.record_stream(here)
        return out
