# expect: silent
"""Numbers that no kernel of ours computes on."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.relu(x * 2) + 1


def get_inputs():
    return [torch.randn(6, 8, dtype=torch.float64)]
