"""Causal attention with a mask in memory.

Family: attention.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / 8.0
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
        return torch.softmax(scores, dim=-1) @ v


def get_inputs():
    return [torch.randn(8, 12, 1024, 64), torch.randn(8, 12, 1024, 64), torch.randn(8, 12, 1024, 64)]


def get_init_inputs():
    return []
