# expect: refused: Model prints when it is called, which a rewritten forward would not
"""It prints a value."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        y = torch.relu(x) * 2 + 1
        print(y.mean())
        return y


def get_inputs():
    return [torch.randn(6, 8)]
