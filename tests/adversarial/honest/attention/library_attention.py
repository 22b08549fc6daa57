"""Calls the library's attention, and lays its output out as the original's lies."""

import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = nn.Linear(width, width)

    def forward(self, q, k, v):
        mixed = F.scaled_dot_product_attention(q, k, v).contiguous()
        return mixed, self.out(mixed).sum(dim=-1)
