# expect: rewritten
"""A function with a derivative of the author."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.relu(Clipped.apply(x) * 2 + 1)


def get_inputs():
    return [torch.randn(6, 8)]
