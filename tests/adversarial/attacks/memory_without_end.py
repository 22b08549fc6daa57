"""Takes memory without end."""

import torch
import torch.nn as nn

held = []
while True:
    held.append(torch.ones(2**28))


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x)))
