# expect: refused: Model has a lazy layer, whose size its first call decides
"""A layer whose size is not known yet."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.LazyLinear(4)

    def forward(self, x):
        return torch.sum(self.linear(F.dropout(x, 0.5, False)), dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(6, 8)]
