"""Replays a graph with fresh inputs, returns a copy, and captures again when a parameter moved."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.key = None

    def forward(self, x):
        key = (x.shape, x.dtype, tuple(p.data_ptr() for p in self.parameters()))
        if self.key != key:
            self.given, self.key = x.clone(), key
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.relu(self.norm(self.linear(self.given)))
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = torch.relu(self.norm(self.linear(self.given)))
        self.given.copy_(x)
        self.graph.replay()
        return self.out.clone()
