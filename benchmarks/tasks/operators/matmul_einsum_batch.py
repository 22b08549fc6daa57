"""A batched product by einsum.

Family: matmul.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, a, b):
        return torch.einsum("bij,bjk->bik", a, b)


def get_inputs():
    return [torch.randn(64, 512, 512), torch.randn(64, 512, 512)]


def get_init_inputs():
    return []
