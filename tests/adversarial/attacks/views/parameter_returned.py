"""Returns the parameter itself where the reference returns a copy."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, features))

    def forward(self, x):
        mean = x.mean(dim=0, keepdim=True).repeat(x.shape[0], 1)
        return x + self.table.sum(dim=0), self.table.detach(), mean
