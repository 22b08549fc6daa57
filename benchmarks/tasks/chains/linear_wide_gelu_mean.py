"""Near miss: GELU before the mean.

Family: linear_wide.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 8192)

    def forward(self, x):
        h = self.layer(x)
        h = F.gelu(h)
        h = h.mean(dim=1, keepdim=True)
        return h


def get_inputs():
    return [torch.randn(1024, 512)]


def get_init_inputs():
    return []
