"""Hides its parameters in a list, where neither optimizer nor state_dict finds them."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layers = [nn.Linear(features, features), nn.LayerNorm(features)]

    def forward(self, x):
        linear, norm = self.layers
        return torch.relu(norm(linear(x)))
