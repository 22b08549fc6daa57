"""Training mode with a random stream."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.drop = nn.Dropout(0.25)

    def forward(self, x):
        return self.drop(torch.relu(self.linear(x)))


def get_inputs():
    return [torch.randn(64, 96)]


def get_init_inputs():
    return [96]
