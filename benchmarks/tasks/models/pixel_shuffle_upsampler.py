"""Upsampling by a shuffle of channels.

Family: cnn.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 64, 5, padding=2), nn.Conv2d(64, 12, 3, padding=1)

    def forward(self, x):
        return F.pixel_shuffle(self.conv2(torch.tanh(self.conv1(x))), 2)


def get_inputs():
    return [torch.randn(16, 3, 96, 96)]


def get_init_inputs():
    return []
