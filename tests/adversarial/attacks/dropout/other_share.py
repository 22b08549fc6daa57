"""Drops a fifth instead of a quarter."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.drop = nn.Dropout(0.25)

    def forward(self, x):
        return nn.functional.dropout(torch.relu(self.linear(x)), 0.2, self.training)
