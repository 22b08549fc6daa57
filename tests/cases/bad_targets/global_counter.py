# expect: refused: Model sets the global calls when it is called, which a rewritten forward would not
"""It counts its calls in a global."""

import torch
import torch.nn as nn

calls = 0


class Model(nn.Module):
    def forward(self, x):
        global calls
        calls += 1
        return torch.relu(x * 2) + 1


def get_inputs():
    return [torch.randn(6, 8)]
