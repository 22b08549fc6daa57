"""A linear scan written as a loop over x[:, t].

Family: state space.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.rand(512))
        self.b = nn.Parameter(torch.rand(512))

    def forward(self, x):
        h = torch.zeros(x.size(0), 512, device=x.device)
        out = []
        for t in range(x.shape[1]):
            h = torch.sigmoid(self.a) * h + self.b * x[:, t]
            out.append(h)
        return torch.stack(out, 1)


def get_inputs():
    return [torch.randn(16, 256, 512)]


def get_init_inputs():
    return []
