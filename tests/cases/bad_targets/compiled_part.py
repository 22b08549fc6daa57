# expect: rewritten
"""A part of it is compiled already."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = torch.compile(nn.Linear(8, 4))

    def forward(self, x):
        return torch.relu(self.part(x) * 2) + 1


def get_inputs():
    return [torch.randn(6, 8)]
