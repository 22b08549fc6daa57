# expect: refused: Model decides by tensor values, which a graph cannot express: `while x.norm() > 1:`
"""A loop that ends by the values."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        while x.norm() > 1:
            x = x * 0.5
        return torch.relu(x) + 1


def get_inputs():
    return [torch.randn(6, 8)]
