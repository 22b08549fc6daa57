"""A layer as people write it: nobody says whether it is trained, so gradients belong to its
result."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(64, 192)]


def get_init_inputs():
    return [192]
