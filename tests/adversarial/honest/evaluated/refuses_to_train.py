"""Knows evaluation alone and says so in train()."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.eval()

    def forward(self, x):
        if self.training:
            raise RuntimeError("this rewrite is for evaluation; use the original for training")
        return torch.relu(self.linear(x))
