"""A recurrent loop over x.unbind(1), all states stacked.

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
        h = torch.zeros(x.size(0), 256, device=x.device)
        outs = []
        for step in x.unbind(1):
            h = torch.tanh(self.i(step) + self.h(h))
            outs.append(h)
        return torch.stack(outs, dim=1)


def get_inputs():
    return [torch.randn(64, 96, 128)]


def get_init_inputs():
    return []
