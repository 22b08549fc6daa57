"""Two maxima that are one larger one.

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
        return F.max_pool2d(F.max_pool2d(x, 2), 2)


def get_inputs():
    return [torch.randn(32, 64, 128, 128)]


def get_init_inputs():
    return []
