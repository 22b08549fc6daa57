"""Mish by hand, then a norm.

Family: conv2d.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(32, 64, 3, padding=1)
        self.norm = nn.BatchNorm2d(64).eval()

    def forward(self, x):
        h = self.layer(x)
        kept = h
        h = F.softplus(h)
        h = torch.tanh(h)
        h = h * kept
        h = self.norm(h)
        return h


def get_inputs():
    return [torch.randn(32, 32, 96, 96)]


def get_init_inputs():
    return []
