"""Attention written out, and a projection that is summed right away."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = nn.Linear(width, width)

    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        mixed = torch.softmax(scores, dim=-1) @ v
        return mixed, self.out(mixed).sum(dim=-1)


def get_inputs():
    return [torch.randn(2, 4, 24, 16) for _ in range(3)]


def get_init_inputs():
    return [16]
