"""A backward without a derivative that says so: who asks for one is refused by torch."""

import torch
import torch.nn as nn
from torch.autograd.function import once_differentiable


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        ctx.save_for_backward(y)
        return y * torch.sigmoid(y)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        s = torch.sigmoid(y)
        return grad * (s * (1 + y * (1 - s)))


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return Swish.apply(self.linear(x))
