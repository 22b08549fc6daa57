"""An LSTM by hand: one product for four gates, states written into a tensor.

Family: recurrent.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Linear(128 + 128, 4 * 128)

    def forward(self, x):
        b, steps, _ = x.shape
        h = x.new_zeros(b, 128)
        c = x.new_zeros(b, 128)
        out = x.new_empty(b, steps, 128)
        for t in range(steps):
            i, f, g, o = self.g(torch.cat([x[:, t], h], dim=-1)).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out[:, t] = h
        return out


def get_inputs():
    return [torch.randn(64, 64, 128)]


def get_init_inputs():
    return []
