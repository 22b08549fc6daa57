"""Both directions, the last state only.

Family: recurrent.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.GRU(256, 128, bidirectional=True)

    def forward(self, x):
        return self.layers(x)[1]


def get_inputs():
    return [torch.randn(128, 64, 256)]


def get_init_inputs():
    return []
