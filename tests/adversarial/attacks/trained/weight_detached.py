"""Lets gradients reach the input only."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        y = nn.functional.linear(x, self.linear.weight.detach(), self.linear.bias.detach())
        return y * torch.sigmoid(y)
