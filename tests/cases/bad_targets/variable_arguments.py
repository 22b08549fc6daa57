# expect: refused: *args and **kwargs in the signature are not supported
"""A signature without names."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, *xs):
        return torch.relu(sum(xs)) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8), torch.randn(6, 8)]
