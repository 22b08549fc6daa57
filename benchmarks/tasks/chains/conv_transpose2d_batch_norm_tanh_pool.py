"""Two norms and a pool.

Family: conv_transpose2d.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ConvTranspose2d(64, 48, 4, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(48).eval()
        self.groups = nn.GroupNorm(8, 48)

    def forward(self, x):
        h = self.layer(x)
        h = self.norm(h)
        h = torch.tanh(h)
        h = F.max_pool2d(h, 2)
        h = self.groups(h)
        return h


def get_inputs():
    return [torch.randn(16, 64, 48, 48)]


def get_init_inputs():
    return []
