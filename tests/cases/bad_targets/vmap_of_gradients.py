# expect: refused: Model maps or differentiates a function inside of forward (torch.func) at `slopes = torch.func.vmap(torch.func.grad(loss))(x)`
"""Gradients of each row are computed inside of forward."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        def loss(row):
            return (row * row).sum()

        slopes = torch.func.vmap(torch.func.grad(loss))(x)
        return torch.relu(slopes * 2) + 1


def get_inputs():
    return [torch.randn(6, 8)]
