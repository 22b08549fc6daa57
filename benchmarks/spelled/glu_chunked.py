"""A gate over the halves of one tensor.

Family: pointwise.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        a, b = x.chunk(2, dim=-1)
        return F.silu(a) * b


def get_inputs():
    return [torch.randn(8192, 8192, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
