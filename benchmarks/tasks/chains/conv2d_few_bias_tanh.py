"""Few input channels: the output is the traffic.

Family: conv2d_few.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 24, 3)
        self.shift = nn.Parameter(0.1 * torch.randn(24, 1, 1))
        self.factor = nn.Parameter(torch.ones(24, 1, 1))

    def forward(self, x):
        h = self.layer(x)
        h = h + self.shift
        h = torch.tanh(h)
        h = h * self.factor
        h = h + self.shift
        return h


def get_inputs():
    return [torch.randn(64, 3, 128, 128)]


def get_init_inputs():
    return []
