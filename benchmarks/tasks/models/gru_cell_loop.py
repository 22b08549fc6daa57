"""A loop over a cell.

Family: recurrent.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(256, 256)

    def forward(self, x):
        h = x.new_zeros(x.shape[1], 256)
        for step in x:
            h = self.cell(step, h)
        return h


def get_inputs():
    return [torch.randn(128, 64, 256)]


def get_init_inputs():
    return []
