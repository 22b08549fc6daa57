# expect: refused: Model sets self.last when it is called, which a rewritten forward would not
"""It remembers a tensor from call to call."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        y = torch.relu(x * 2) + 1
        self.last = y
        return y


def get_inputs():
    return [torch.randn(6, 8)]
