"""A narrow layer, reduced.

Family: linear_narrow.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8192, 512)

    def forward(self, x):
        h = self.layer(x)
        h = torch.sigmoid(h)
        h = h.sum(dim=1, keepdim=True)
        return h


def get_inputs():
    return [torch.randn(2048, 8192)]


def get_init_inputs():
    return []
