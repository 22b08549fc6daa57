# expect: refused: get_inputs() makes a subclass of Tensor, which may redefine any operation
"""It is given a subclass of Tensor that redefines operations."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Loud(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {}) + 0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.relu(x * 2) + 1


def get_inputs():
    return [torch.randn(6, 8).as_subclass(Loud)]
