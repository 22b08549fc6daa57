"""A diagonal matrix from the left scales rows.

Family: matmul.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, a, b):
        return torch.diag(a) @ b


def get_inputs():
    return [torch.randn(4096), torch.randn(4096, 4096)]


def get_init_inputs():
    return []
