"""Near miss: the dimension has two entries, so it is no view.

Family: reduction.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return x.sum(dim=1)


def get_inputs():
    return [torch.randn(4096, 2, 4096)]


def get_init_inputs():
    return []
