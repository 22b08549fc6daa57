"""Used in evaluation: dropout does nothing until somebody calls train()."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.drop = nn.Dropout(0.25)
        self.eval()

    def forward(self, x):
        return torch.relu(self.drop(self.linear(x)))


def get_inputs():
    return [torch.randn(32, 64)]


def get_init_inputs():
    return [64]
