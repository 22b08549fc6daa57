"""Normalizes by the running statistics in training, too."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        n = self.norm
        return torch.relu(
            nn.functional.batch_norm(
                self.linear(x), n.running_mean, n.running_var, n.weight, n.bias, False
            )
        )
