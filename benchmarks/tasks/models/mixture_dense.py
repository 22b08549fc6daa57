"""Four experts, all of them computed and weighed.

Family: mlp.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(512, 4)
        self.experts = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))

    def forward(self, x):
        weights = torch.softmax(self.gate(x), dim=-1)
        h = torch.stack([torch.relu(expert(x)) for expert in self.experts], dim=-1)
        return (h * weights.unsqueeze(-2)).sum(-1)


def get_inputs():
    return [torch.randn(4096, 512)]


def get_init_inputs():
    return []
