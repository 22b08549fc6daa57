"""PReLU with a weight for each channel, in a chain.

Family: pointwise.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.PReLU(256)

    def forward(self, x):
        return self.p(x) * 0.5 + x


def get_inputs():
    return [torch.randn(32, 256, 56, 56)]


def get_init_inputs():
    return []
