"""A right backward that hides from autograd what it is made of, as a kernel does: gradients of
gradients (a penalty on the gradient) miss a term, and nobody says so."""

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
        with torch.no_grad():
            s = torch.sigmoid(y)
            slope = s * (1 + y * (1 - s))
        return grad * slope


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return Swish.apply(self.linear(x))
