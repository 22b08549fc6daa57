"""A softmax over one channel is a constant.

Family: conv3d.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv3d(8, 24, 3, padding=1)

    def forward(self, x):
        h = self.layer(x)
        h = h.min(dim=1, keepdim=True).values
        h = torch.softmax(h, dim=1)
        return h


def get_inputs():
    return [torch.randn(16, 8, 16, 48, 48)]


def get_init_inputs():
    return []
