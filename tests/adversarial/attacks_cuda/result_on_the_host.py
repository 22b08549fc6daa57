"""Returns its result on the host, where a copy is easy to compare."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x))).cpu()
