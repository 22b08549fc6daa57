"""A softmax over few channels.

Family: conv2d_few.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 24, 3)

    def forward(self, x):
        h = self.layer(x)
        h = torch.softmax(h, dim=1)
        return h


def get_inputs():
    return [torch.randn(64, 3, 128, 128)]


def get_init_inputs():
    return []
