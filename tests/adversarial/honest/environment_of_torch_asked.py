"""Asks what the machine can do before it chooses."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        if torch.cuda.is_available() and x.is_cuda:
            return torch.relu(self.norm(self.linear(x)))
        return torch.relu(self.norm(torch.addmm(self.linear.bias, x, self.linear.weight.T)))
