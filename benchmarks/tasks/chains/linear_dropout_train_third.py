"""Near miss: this dropout draws random numbers.

Family: linear.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1024, 2048)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        h = self.layer(x)
        h = self.drop(h)
        h = h / 3.0
        h = torch.relu(h)
        return h


def get_inputs():
    return [torch.randn(4096, 1024)]


def get_init_inputs():
    return []
