"""A norm and two averages.

Family: conv_transpose3d.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ConvTranspose3d(16, 24, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm3d(24).eval()

    def forward(self, x):
        h = self.layer(x)
        h = self.norm(h)
        h = F.avg_pool3d(h, 2)
        h = F.avg_pool3d(h, 2)
        return h


def get_inputs():
    return [torch.randn(8, 16, 12, 24, 24)]


def get_init_inputs():
    return []
