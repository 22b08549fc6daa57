"""Depthwise 7x7, LayerNorm over channels, a perceptron.

Family: cnn.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(96, 96, 7, padding=3, groups=96)
        self.norm = nn.LayerNorm(96)
        self.up, self.down = nn.Linear(96, 384), nn.Linear(384, 96)

    def forward(self, x):
        h = self.mix(x).permute(0, 2, 3, 1)
        h = self.down(F.gelu(self.up(self.norm(h))))
        return x + h.permute(0, 3, 1, 2)


def get_inputs():
    return [torch.randn(16, 96, 56, 56)]


def get_init_inputs():
    return []
