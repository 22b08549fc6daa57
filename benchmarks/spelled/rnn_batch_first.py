"""A recurrent loop over x[:, t], the last state only.

Family: recurrent.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.i = nn.Linear(128, 256)
        self.h = nn.Linear(256, 256)

    def forward(self, x):
        h = x.new_zeros(x.size(0), 256)
        for t in range(x.size(1)):
            h = torch.tanh(self.i(x[:, t]) + self.h(h))
        return h


def get_inputs():
    return [torch.randn(64, 96, 128)]


def get_init_inputs():
    return []
