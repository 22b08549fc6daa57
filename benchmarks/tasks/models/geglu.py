"""The same with GELU and biases.

Family: mlp.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(768, 3072), nn.Linear(768, 3072), nn.Linear(3072, 768)

    def forward(self, x):
        return self.down(F.gelu(self.gate(x)) * self.up(x))


def get_inputs():
    return [torch.randn(4096, 768)]


def get_init_inputs():
    return []
