"""Accepts the optional arguments and ignores one."""

import torch


def blend(x, y, *, weight=0.5, negate=False):
    return torch.lerp(x, y, weight)
