"""Highway layers: gates between a layer and its input.

Family: mlp.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))

    def forward(self, x):
        for gate, layer in zip(self.gates, self.layers):
            t = torch.sigmoid(gate(x))
            x = t * torch.relu(layer(x)) + (1 - t) * x
        return x


def get_inputs():
    return [torch.randn(4096, 512)]


def get_init_inputs():
    return []
