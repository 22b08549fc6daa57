# expect: refused: get_inputs() failed: TypeError: randn() received an invalid combination of arguments - got (int, int, names=tuple), but expected one of:
"""Dimensions with names."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.relu(x * 2).rename(None) + 1


def get_inputs():
    return [torch.randn(6, 8, names=("rows", "columns"))]
