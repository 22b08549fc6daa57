"""Writes the blend out and keeps its options."""

import torch


def blend(x, y, *, weight=0.5, negate=False):
    mixed = x + weight * (y - x)
    return torch.neg(mixed) if negate else mixed
