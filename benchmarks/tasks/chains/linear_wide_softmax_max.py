"""The largest probability.

Family: linear_wide.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 8192)

    def forward(self, x):
        h = self.layer(x)
        h = torch.softmax(h, dim=1)
        h = h.max(dim=1, keepdim=True).values
        return h


def get_inputs():
    return [torch.randn(1024, 512)]


def get_init_inputs():
    return []
