"""Silences a warning and warns itself."""

import warnings

import torch
import torch.nn as nn

warnings.filterwarnings("ignore", message="nothing")


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("falls back to two kernels", stacklevel=2)
            return torch.relu(self.norm(self.linear(x)))
