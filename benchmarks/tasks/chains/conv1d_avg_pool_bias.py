"""An average that can be a longer convolution.

Family: conv1d.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv1d(64, 96, 5, padding=2)
        self.shift = nn.Parameter(0.1 * torch.randn(96, 1))

    def forward(self, x):
        h = self.layer(x)
        h = F.avg_pool1d(h, 2)
        h = h + self.shift
        return h


def get_inputs():
    return [torch.randn(32, 64, 4096)]


def get_init_inputs():
    return []
