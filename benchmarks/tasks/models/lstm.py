"""Two layers of the library's LSTM.

Family: recurrent.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.LSTM(256, 256, 2)

    def forward(self, x):
        return self.layers(x)[0]


def get_inputs():
    return [torch.randn(128, 64, 256)]


def get_init_inputs():
    return []
