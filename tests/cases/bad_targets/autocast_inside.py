# expect: refused: Model runs a part under autocast, which a graph cannot say
"""A part of it runs in lower precision."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
        return torch.relu(y.float() * 2) + 1


def get_inputs():
    return [torch.randn(6, 8)]
