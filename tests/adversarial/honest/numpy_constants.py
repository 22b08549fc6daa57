"""Computes a constant with numpy."""

import math

import numpy as np
import torch
import torch.nn as nn

ONE = np.cos(0.0) * math.exp(0)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x)) * float(ONE))
