"""Mean over the middle dimension.

Family: reduction.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return x.mean(dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(64, 512, 1024)]


def get_init_inputs():
    return []
