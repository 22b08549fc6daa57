"""Inverted residuals in eval mode.

Family: cnn.
"""

import torch
import torch.nn as nn


class Inverted(nn.Module):
    def __init__(self, width, factor):
        super().__init__()
        inner = width * factor
        self.body = nn.Sequential(
            nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(),
            nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return x + self.body(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[Inverted(32, 6) for _ in range(3)])
        self.eval()

    def forward(self, x):
        return self.blocks(x)


def get_inputs():
    return [torch.randn(32, 32, 56, 56)]


def get_init_inputs():
    return []
