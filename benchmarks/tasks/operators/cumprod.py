"""Running products near one.

Family: scan.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.cumprod(x, dim=1)


def get_inputs():
    return [1 + 0.001 * torch.randn(2048, 8192)]


def get_init_inputs():
    return []
