"""A long chain that ends in one channel.

Family: conv2d.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(32, 64, 3, padding=1)
        self.groups = nn.GroupNorm(8, 64)

    def forward(self, x):
        h = self.layer(x)
        kept = h
        h = self.groups(h)
        h = torch.tanh(h)
        h = F.hardswish(h)
        h = h + kept
        h = torch.logsumexp(h, dim=1, keepdim=True)
        return h


def get_inputs():
    return [torch.randn(32, 32, 96, 96)]


def get_init_inputs():
    return []
