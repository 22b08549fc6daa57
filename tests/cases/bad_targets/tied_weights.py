# expect: silent
"""Two layers share one weight."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x):
        return torch.sum(self.second(self.first(x)), dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(6, 8)]
