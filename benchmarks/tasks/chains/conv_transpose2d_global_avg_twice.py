"""The mean of a mean over one entry.

Family: conv_transpose2d.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ConvTranspose2d(64, 48, 4, stride=2, padding=1)

    def forward(self, x):
        h = self.layer(x)
        h = h * 2.0
        h = h.mean(dim=(2, 3), keepdim=True)
        h = h.mean(dim=(2, 3), keepdim=True)
        return h


def get_inputs():
    return [torch.randn(16, 64, 48, 48)]


def get_init_inputs():
    return []
