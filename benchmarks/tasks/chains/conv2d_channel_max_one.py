"""The second maximum is over one channel.

Family: conv2d.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(32, 64, 3, padding=1)

    def forward(self, x):
        h = self.layer(x)
        h = h.max(dim=1, keepdim=True).values
        h = h.max(dim=1, keepdim=True).values
        return h


def get_inputs():
    return [torch.randn(32, 32, 96, 96)]


def get_init_inputs():
    return []
