"""Used in training: gradients reach the inputs and the parameters (see GRADIENTS in
test_candidates.py)."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        y = self.linear(x)
        return y * torch.sigmoid(y)


def get_inputs():
    return [torch.randn(16, 64, requires_grad=True)]


def get_init_inputs():
    return [64]
