"""A function with optional arguments that its caller may use."""

import torch


def blend(x, y, *, weight=0.5, negate=False):
    mixed = torch.lerp(x, y, weight)
    return -mixed if negate else mixed


def get_inputs():
    return [torch.randn(16, 32), torch.randn(16, 32)]
