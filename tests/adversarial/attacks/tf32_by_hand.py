"""Rounds the product's operands to ten bits of mantissa, as TF32 does."""

import torch
import torch.nn as nn


def shorten(values):
    bits = values.detach().contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        y = nn.functional.linear(shorten(x), shorten(self.linear.weight), self.linear.bias)
        return torch.relu(self.norm(y))
