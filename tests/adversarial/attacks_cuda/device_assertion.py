"""Fails an assertion on the device, which poisons its context."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        index = torch.full((4,), 10**6, device=x.device)
        return torch.relu(self.norm(self.linear(x[index])))
