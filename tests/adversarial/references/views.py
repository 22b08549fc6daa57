"""Copies of a parameter, of the input and of one row: results that a candidate may be tempted to
alias."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, features))

    def forward(self, x):
        mean = x.mean(dim=0, keepdim=True).repeat(x.shape[0], 1)
        return x + self.table.sum(dim=0), self.table.clone(), mean


def get_inputs():
    return [torch.randn(16, 32)]


def get_init_inputs():
    return [32]
