"""A pool and a logsumexp.

Family: conv3d.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv3d(8, 24, 3, padding=1)

    def forward(self, x):
        h = self.layer(x)
        h = F.max_pool3d(h, 2)
        h = torch.logsumexp(h, dim=1, keepdim=True)
        h = torch.relu(h)
        return h


def get_inputs():
    return [torch.randn(16, 8, 16, 48, 48)]


def get_init_inputs():
    return []
