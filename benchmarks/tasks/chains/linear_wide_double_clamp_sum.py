"""The same with a clamp.

Family: linear_wide.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 8192)

    def forward(self, x):
        h = self.layer(x)
        h = h * 2.0
        h = torch.clamp(h, -0.8, 1.2)
        h = h.sum(dim=1, keepdim=True)
        h = h - 0.3
        return h


def get_inputs():
    return [torch.randn(1024, 512)]


def get_init_inputs():
    return []
