"""Has no place for the optional arguments."""

import torch


def blend(x, y):
    return torch.lerp(x, y, 0.5)
