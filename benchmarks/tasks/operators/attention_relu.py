"""Near miss: ReLU instead of softmax, so no library call fits.

Family: attention.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, q, k, v):
        return torch.relu(q @ k.transpose(-2, -1) / 8.0) @ v


def get_inputs():
    return [torch.randn(8, 12, 1024, 64), torch.randn(8, 12, 1024, 64), torch.randn(8, 12, 1024, 64)]


def get_init_inputs():
    return []
