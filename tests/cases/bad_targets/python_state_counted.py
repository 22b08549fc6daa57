# expect: refused: Model sets self.calls when it is called, which a rewritten forward would not
"""It counts its calls in a Python number."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.relu(x * self.calls) + 1


def get_inputs():
    return [torch.randn(6, 8)]
