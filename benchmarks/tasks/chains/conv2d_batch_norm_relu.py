"""A norm that folds into the convolution.

Family: conv2d.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(32, 64, 3, padding=1)
        self.norm = nn.BatchNorm2d(64).eval()

    def forward(self, x):
        h = self.layer(x)
        h = self.norm(h)
        h = torch.relu(h)
        return h


def get_inputs():
    return [torch.randn(32, 32, 96, 96)]


def get_init_inputs():
    return []
