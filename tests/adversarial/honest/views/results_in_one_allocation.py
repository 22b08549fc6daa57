"""Computes two results in one allocation, side by side."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, features))

    def forward(self, x):
        both = torch.cat(
            [x + self.table.sum(dim=0), x.mean(dim=0, keepdim=True).repeat(x.shape[0], 1)]
        )
        return both[: x.shape[0]], self.table.clone(), both[x.shape[0] :]
