# expect: rewritten
"""A parametrization of the author."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.abs()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        torch.nn.utils.parametrize.register_parametrization(self.linear, "weight", Symmetric())

    def forward(self, x):
        return torch.sum(self.linear(F.dropout(x, 0.5, False)), dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(6, 8)]
