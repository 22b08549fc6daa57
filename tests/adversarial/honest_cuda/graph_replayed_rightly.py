"""Replays a graph with fresh inputs, returns a copy, and captures again when a parameter moved.

Its memory can be written in training too, whoever captured: under inference_mode it could not be.
Nothing is captured under autocast, which keeps 16-bit copies of weights for as long as it is on."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.key = None

    def forward(self, x):
        if torch.is_autocast_enabled("cuda"):
            return self.compute(x)
        key = (x.shape, x.dtype, tuple(p.data_ptr() for p in self.parameters()))
        if self.key != key:
            self.capture(x)
            self.key = key  # only now: a capture that failed is no graph of these parameters
        self.given.copy_(x)
        self.graph.replay()
        return self.out.clone()

    def capture(self, x):
        with torch.inference_mode(False), torch.no_grad():
            self.given = x.clone()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.compute(self.given)
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = self.compute(self.given)

    def compute(self, x):
        return torch.relu(self.norm(self.linear(x)))
