"""Near miss: causal attention with ReLU, not softmax.

Family: transformer.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(512, 1536)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 8, 64).permute(2, 0, 3, 1, 4)
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = torch.relu((q @ k.transpose(-2, -1) * 0.125).masked_fill(hidden, 0.0))
        return (scores @ v).transpose(1, 2).reshape(batch, length, width)


def get_inputs():
    return [torch.randn(8, 512, 512)]


def get_init_inputs():
    return []
