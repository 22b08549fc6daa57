"""A maximum over features.

Family: matmul.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2048, 1024, bias=False)

    def forward(self, x):
        h = x @ self.layer.weight.T
        h = F.leaky_relu(h, 0.1)
        h = h.max(dim=1, keepdim=True).values
        h = torch.sigmoid(h)
        return h


def get_inputs():
    return [torch.randn(4096, 2048)]


def get_init_inputs():
    return []
