"""A diagonal state space model, step by step.

Family: recurrent.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.randn(256))

    def forward(self, x):
        a = torch.sigmoid(self.decay)
        h = torch.zeros_like(x[0])
        out = []
        for step in x:
            h = a * h + (1 - a) * step
            out.append(h)
        return torch.stack(out)


def get_inputs():
    return [torch.randn(128, 64, 256)]


def get_init_inputs():
    return []
