"""Few queries, long memory.

Family: transformer.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(512, 512), nn.Linear(512, 1024)

    def forward(self, x, y):
        q = self.q(x).view(8, 64, 8, 64).transpose(1, 2)
        k, v = self.kv(y).view(8, 2048, 2, 8, 64).permute(2, 0, 3, 1, 4)
        return torch.softmax(q @ k.transpose(-2, -1) * 0.125, dim=-1) @ v


def get_inputs():
    return [torch.randn(8, 64, 512), torch.randn(8, 2048, 512)]


def get_init_inputs():
    return []
