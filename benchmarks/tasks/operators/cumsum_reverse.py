"""Running sums from the end.

Family: scan.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return x.flip(1).cumsum(1).flip(1)


def get_inputs():
    return [torch.randn(2048, 8192)]


def get_init_inputs():
    return []
