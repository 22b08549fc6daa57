"""Has a backward that forgets a term."""

import torch
import torch.nn as nn


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        ctx.save_for_backward(y)
        return y * torch.sigmoid(y)

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        s = torch.sigmoid(y)
        return grad * s


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return Swish.apply(self.linear(x))
