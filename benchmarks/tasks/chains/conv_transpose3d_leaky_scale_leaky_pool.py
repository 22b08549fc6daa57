"""Two activations around a factor.

Family: conv_transpose3d.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ConvTranspose3d(16, 24, 3, stride=2, padding=1)
        self.factor = nn.Parameter(torch.ones(24, 1, 1, 1))

    def forward(self, x):
        h = self.layer(x)
        h = F.leaky_relu(h, 0.1)
        h = h * self.factor
        h = F.leaky_relu(h, 0.1)
        h = F.max_pool3d(h, 2)
        return h


def get_inputs():
    return [torch.randn(8, 16, 12, 24, 24)]


def get_init_inputs():
    return []
