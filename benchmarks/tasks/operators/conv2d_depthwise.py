"""One filter a channel.

Family: convolution.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(256, 256, 3, padding=1, groups=256)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(16, 256, 96, 96)]


def get_init_inputs():
    return []
