"""Keeps a transposed weight and refreshes it when the weight has changed."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.key, self.folded = None, None

    def forward(self, x):
        weight = self.linear.weight
        key = (weight.data_ptr(), weight._version)
        if self.key != key:
            self.key, self.folded = key, weight.detach().T.contiguous()
        return torch.relu(self.norm(torch.addmm(self.linear.bias, x, self.folded)))
