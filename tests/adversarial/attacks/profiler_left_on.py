"""Leaves a hook on every saved tensor."""

import torch
import torch.nn as nn

hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
hooks.__enter__()


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x)))
