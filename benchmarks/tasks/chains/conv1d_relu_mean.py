"""A signal's mean activation.

Family: conv1d.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv1d(64, 96, 5, padding=2)

    def forward(self, x):
        h = self.layer(x)
        h = torch.relu(h)
        h = h.mean(dim=(2,), keepdim=True)
        return h


def get_inputs():
    return [torch.randn(32, 64, 4096)]


def get_init_inputs():
    return []
