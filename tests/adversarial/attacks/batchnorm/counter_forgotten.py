"""Forgets to count the batches."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        n = self.norm
        y = nn.functional.batch_norm(
            self.linear(x), n.running_mean, n.running_var, n.weight, n.bias, True, n.momentum, n.eps
        )
        return torch.relu(y)
