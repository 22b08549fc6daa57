"""Maxima of windows of volumes.

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
        return F.max_pool3d(x, 2)


def get_inputs():
    return [torch.randn(8, 32, 48, 64, 64)]


def get_init_inputs():
    return []
