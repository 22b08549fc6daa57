"""A classifier in eval mode.

Family: mlp.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(4096, 4096), nn.Linear(4096, 1000), nn.Dropout(0.5)
        self.eval()

    def forward(self, x):
        return torch.softmax(self.down(self.drop(torch.relu(self.up(x)))), dim=1)


def get_inputs():
    return [torch.randn(1024, 4096)]


def get_init_inputs():
    return []
