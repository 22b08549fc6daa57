"""Many matrices times one vector each.

Family: matmul.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, a, b):
        return torch.bmm(a, b)


def get_inputs():
    return [torch.randn(512, 512, 512), torch.randn(512, 512, 1)]


def get_init_inputs():
    return []
