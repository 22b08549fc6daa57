"""A wide layer that is reduced at once.

Family: linear_wide.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 8192)
        self.shift = nn.Parameter(0.1 * torch.randn(8192))

    def forward(self, x):
        h = self.layer(x)
        h = h + self.shift
        h = torch.relu(h)
        h = h.sum(dim=1, keepdim=True)
        return h


def get_inputs():
    return [torch.randn(1024, 512)]


def get_init_inputs():
    return []
