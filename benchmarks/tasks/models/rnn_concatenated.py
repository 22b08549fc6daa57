"""The same with a concatenation in every step.

Family: recurrent.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 256)

    def forward(self, x):
        h = x.new_zeros(x.shape[1], 256)
        for step in x:
            h = torch.tanh(self.layer(torch.cat([step, h], dim=1)))
        return h


def get_inputs():
    return [torch.randn(128, 64, 256)]


def get_init_inputs():
    return []
