"""A tanh recurrence in a Python loop.

Family: recurrent.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(256, 256), nn.Linear(256, 256, bias=False)

    def forward(self, x):
        h = x.new_zeros(x.shape[1], 256)
        for step in x:
            h = torch.tanh(self.inner(step) + self.outer(h))
        return h


def get_inputs():
    return [torch.randn(128, 64, 256)]


def get_init_inputs():
    return []
