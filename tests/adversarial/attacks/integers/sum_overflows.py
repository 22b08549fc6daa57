"""Sums in 32 bits."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, counts):
        squares = (counts * counts).cumsum(dim=1, dtype=torch.int32).long()
        return counts.sum(dim=1), squares
