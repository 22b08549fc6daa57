"""Convolutions, pools, a classifier.

Family: cnn.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5)
        self.head = nn.Linear(64 * 29 * 29, 10)

    def forward(self, x):
        h = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        h = F.max_pool2d(torch.relu(self.conv2(h)), 2)
        return self.head(h.flatten(1))


def get_inputs():
    return [torch.randn(64, 3, 128, 128)]


def get_init_inputs():
    return []
