"""Decorates a helper and keeps its name."""

import functools

import torch
import torch.nn as nn


def checked(function):
    @functools.wraps(function)
    def call(*args):
        assert all(isinstance(arg, torch.Tensor) for arg in args)
        return function(*args)

    return call


@checked
def product(x, weight, bias):
    return torch.addmm(bias, x, weight.T)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.relu(self.norm(product(x, self.linear.weight, self.linear.bias)))
