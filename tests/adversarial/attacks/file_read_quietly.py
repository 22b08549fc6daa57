"""Writes to disk through a library, to find it again in the next process."""

import numpy
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        numpy.save("seen", numpy.zeros(3))
        return torch.relu(self.norm(self.linear(x)))
