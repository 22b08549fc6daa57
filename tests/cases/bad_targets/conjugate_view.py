# expect: silent
"""A conjugate is a view that has not been computed."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.conj(x) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8, dtype=torch.complex64)]
