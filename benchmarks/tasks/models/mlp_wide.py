"""Two wide layers.

Family: mlp.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(2048, 8192), nn.Linear(8192, 2048)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


def get_inputs():
    return [torch.randn(1024, 2048)]


def get_init_inputs():
    return []
