"""A product over the channels of volumes.

Family: convolution.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(64, 32, 1)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(8, 64, 16, 48, 48)]


def get_init_inputs():
    return []
