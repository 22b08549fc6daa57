"""Near miss: the same with batch statistics.

Family: cnn.
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        h = torch.relu(self.norm1(self.first(x)))
        return torch.relu(self.norm2(self.second(h)) + x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(64) for _ in range(2)])

    def forward(self, x):
        return self.blocks(torch.relu(self.stem(x)))


def get_inputs():
    return [torch.randn(32, 3, 64, 64)]


def get_init_inputs():
    return []
