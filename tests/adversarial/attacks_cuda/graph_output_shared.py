"""Replays a graph rightly and returns its one output buffer."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.graph = None

    def forward(self, x):
        if self.graph is None or x.shape != self.given.shape:
            self.given = x.clone()
            for _ in range(2):
                torch.relu(self.norm(self.linear(self.given)))
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = torch.relu(self.norm(self.linear(self.given)))
        self.given.copy_(x)
        self.graph.replay()
        return self.out
