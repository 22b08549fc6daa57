# expect: refused: `torch.mul(x, 2, out=out)` changes a tensor in place that others can see
"""The result lies in an input."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x, out):
        torch.mul(x, 2, out=out)
        return torch.relu(out) + 1


def get_inputs():
    return [torch.randn(6, 8), torch.empty(6, 8)]
