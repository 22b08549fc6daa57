"""Down, up, and a skip.

Family: cnn.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.up = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.out = nn.Conv2d(64, 1, 1)

    def forward(self, x):
        a = torch.relu(self.down1(x))
        b = torch.relu(self.down2(F.max_pool2d(a, 2)))
        return torch.sigmoid(self.out(torch.cat([a, torch.relu(self.up(b))], dim=1)))


def get_inputs():
    return [torch.randn(16, 3, 128, 128)]


def get_init_inputs():
    return []
