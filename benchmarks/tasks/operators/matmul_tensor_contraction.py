"""A 1x1 convolution by einsum.

Family: matmul.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, a, b):
        return torch.einsum("nchw,cd->ndhw", a, b)


def get_inputs():
    return [torch.randn(16, 256, 64, 64), torch.randn(256, 128)]


def get_init_inputs():
    return []
