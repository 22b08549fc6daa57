"""Sums in 64 bits from the start."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, counts):
        return counts.sum(dim=1, dtype=torch.int64), counts.long().square().cumsum(dim=1)
