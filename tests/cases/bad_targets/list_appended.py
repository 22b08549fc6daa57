# expect: refused: Model changes self.seen when it is called, which a rewritten forward would not
"""It keeps a list of what it saw."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x.shape)
        return torch.relu(x * 2) + 1


def get_inputs():
    return [torch.randn(6, 8)]
