"""Channels weighed by their own means.

Family: cnn.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.squeeze, self.excite = nn.Linear(256, 16), nn.Linear(16, 256)

    def forward(self, x):
        s = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean(dim=(2, 3))))))
        return x * s[:, :, None, None]


def get_inputs():
    return [torch.randn(32, 256, 56, 56)]


def get_init_inputs():
    return []
