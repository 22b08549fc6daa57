"""A softmax over channels of volumes.

Family: conv_transpose3d.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ConvTranspose3d(16, 24, 3, stride=2, padding=1)

    def forward(self, x):
        h = self.layer(x)
        h = torch.softmax(h, dim=1)
        h = torch.sigmoid(h)
        return h


def get_inputs():
    return [torch.randn(8, 16, 12, 24, 24)]


def get_init_inputs():
    return []
