"""Gated dilated convolutions of signals.

Family: cnn.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.filters = nn.ModuleList(nn.Conv1d(64, 64, 3, dilation=2**i, padding=2**i) for i in range(4))
        self.gates = nn.ModuleList(nn.Conv1d(64, 64, 3, dilation=2**i, padding=2**i) for i in range(4))

    def forward(self, x):
        for f, g in zip(self.filters, self.gates):
            x = x + torch.tanh(f(x)) * torch.sigmoid(g(x))
        return x


def get_inputs():
    return [torch.randn(16, 64, 4096)]


def get_init_inputs():
    return []
