"""Right values; under autocast its gradients are half of what they should be."""

import torch
import torch.nn as nn


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        ctx.scale = 0.5 if torch.is_autocast_enabled(y.device.type) else 1.0
        return y.clone()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        return torch.relu(Through.apply(self.linear(x)))
