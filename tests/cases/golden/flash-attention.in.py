"""Attention with a bias for distance and a causal mask, written by hand."""

import torch
import torch.nn as nn


# kernel-lsp: workload x=f32[8,512,512]
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(512, 1536)
        self.distance = nn.Parameter(torch.zeros(8, 512, 512))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 8, 64).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * 64**-0.5 + self.distance
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        return (weights @ v).transpose(1, 2).reshape(batch, length, width)
