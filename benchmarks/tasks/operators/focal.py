"""A focal loss written out.

Family: loss.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x, y):
        p = torch.sigmoid(x)
        t = (y > 0).float()
        q = p * t + (1 - p) * (1 - t)
        return (-((1 - q) ** 2) * torch.log(q + 1e-8)).mean()


def get_inputs():
    return [torch.randn(8192, 4096), torch.randn(8192, 4096)]


def get_init_inputs():
    return []
