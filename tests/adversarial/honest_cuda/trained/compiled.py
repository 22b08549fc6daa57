"""torch.compile of the whole forward, as the skill compile-target writes it."""

import functools

import torch
import torch.nn as nn


@functools.cache
def _compiled(function):
    return torch.compile(function)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def _forward_eager(self, x):
        y = self.linear(x)
        return y * torch.sigmoid(y)

    def forward(self, x):
        return _compiled(type(self)._forward_eager)(self, x)
