"""A clamp whose sides do not cross.

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
        h = torch.clamp(h, min=0.25)
        h = torch.minimum(h, h.new_tensor(0.5))
        return h


def get_inputs():
    return [torch.randn(2048, 8192)]


def get_init_inputs():
    return []
