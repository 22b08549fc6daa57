# expect: rewritten
"""Pairs of numbers seen as complex ones."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        turned = torch.view_as_complex(x.view(6, 4, 2)) * 1j
        return torch.relu(torch.view_as_real(turned)) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8)]
