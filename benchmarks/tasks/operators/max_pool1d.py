"""Maxima of windows of signals.

Family: pool.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return F.max_pool1d(x, 4)


def get_inputs():
    return [torch.randn(32, 128, 16384)]


def get_init_inputs():
    return []
