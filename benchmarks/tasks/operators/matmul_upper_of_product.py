"""Only half of the product is kept.

Family: matmul.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, a, b):
        return torch.triu(a @ b)


def get_inputs():
    return [torch.randn(3072, 3072), torch.randn(3072, 3072)]


def get_init_inputs():
    return []
