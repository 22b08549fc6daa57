"""A norm and a residual.

Family: bmm.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, x, y):
        h = torch.bmm(x, y)
        kept = h
        h = F.instance_norm(h)
        h = h + kept
        h = h * kept
        return h


def get_inputs():
    return [torch.randn(64, 256, 512), torch.randn(64, 512, 256)]


def get_init_inputs():
    return []
