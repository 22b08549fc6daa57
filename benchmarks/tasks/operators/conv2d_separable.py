"""A depthwise and a pointwise convolution.

Family: convolution.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1, groups=128), nn.Conv2d(128, 128, 1))

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(16, 128, 64, 64)]


def get_init_inputs():
    return []
