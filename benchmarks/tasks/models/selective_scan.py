"""A state space whose decay depends on the input.

Family: recurrent.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(256, 256)

    def forward(self, x):
        a = torch.sigmoid(self.gate(x))
        h = torch.zeros_like(x[0])
        out = []
        for decay, step in zip(a, x):
            h = decay * h + step
            out.append(h)
        return torch.stack(out)


def get_inputs():
    return [torch.randn(128, 64, 256)]


def get_init_inputs():
    return []
