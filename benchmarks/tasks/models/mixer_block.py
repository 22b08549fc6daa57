"""Perceptrons over tokens and over channels.

Family: transformer.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(384), nn.LayerNorm(384)
        self.tokens1, self.tokens2 = nn.Linear(196, 384), nn.Linear(384, 196)
        self.up, self.down = nn.Linear(384, 1536), nn.Linear(1536, 384)

    def forward(self, x):
        h = self.norm1(x).transpose(1, 2)
        x = x + self.tokens2(F.gelu(self.tokens1(h))).transpose(1, 2)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def get_inputs():
    return [torch.randn(64, 196, 384)]


def get_init_inputs():
    return []
