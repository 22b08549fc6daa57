"""A bottleneck of features.

Family: mlp.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [2048, 512, 64, 512, 2048]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return torch.sigmoid(self.layers[-1](x))


def get_inputs():
    return [torch.randn(4096, 2048)]


def get_init_inputs():
    return []
