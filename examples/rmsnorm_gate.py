"""RMS norm written by hand, then a SiLU gate: six passes over memory where one is enough."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x, gate):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * scale * self.weight * F.silu(gate)


def get_init_inputs():
    return [2048, 1e-6]


def get_inputs():
    return [torch.randn(4096, 2048), torch.randn(4096, 2048)]
