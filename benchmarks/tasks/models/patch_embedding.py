"""Patches by a strided convolution, a class token.

Family: transformer.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 384, 16, stride=16)
        self.token = nn.Parameter(torch.randn(1, 1, 384))
        self.place = nn.Parameter(torch.randn(1, 197, 384))

    def forward(self, x):
        h = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(h), -1, -1), h], dim=1) + self.place


def get_inputs():
    return [torch.randn(64, 3, 224, 224)]


def get_init_inputs():
    return []
