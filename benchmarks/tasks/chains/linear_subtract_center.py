"""A constant disappears when rows are centered.

Family: linear.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1024, 2048)

    def forward(self, x):
        h = self.layer(x)
        h = h - 0.3
        h = h - h.mean(dim=1, keepdim=True)
        h = F.gelu(h)
        return h


def get_inputs():
    return [torch.randn(4096, 1024)]


def get_init_inputs():
    return []
