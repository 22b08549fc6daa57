"""Sums whole numbers as float32."""

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, counts):
        wide = counts.float()
        return wide.sum(dim=1).long(), (wide * wide).cumsum(dim=1).long()
