"""Queries and keys of a decoder, turned by their places behind the projections."""

import torch
import torch.nn as nn


# kernel-lsp: workload x=f32[4,1024,512] cos=f32[1024,64] sin=f32[1024,64]
class RotaryHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(512, 512), nn.Linear(512, 512)

    def forward(self, x, cos, sin):
        q = self.query(x).view(-1, 1024, 8, 64).transpose(1, 2)
        k = self.key(x).view(-1, 1024, 8, 64).transpose(1, 2)
        q = q * cos + self.rotate_half(q) * sin
        k = k * cos + self.rotate_half(k) * sin
        return q, k

    def rotate_half(self, x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)
