"""The gated feed-forward layer of language models.

Family: mlp.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(1024, 4096, bias=False), nn.Linear(1024, 4096, bias=False), nn.Linear(4096, 1024, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


def get_inputs():
    return [torch.randn(4096, 1024)]


def get_init_inputs():
    return []
