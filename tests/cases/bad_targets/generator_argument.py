# expect: refused: Model draws from a generator of its own
"""Noise from a generator of its own."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        return torch.relu(x + torch.randn(6, 8, generator=self.generator)) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8)]
