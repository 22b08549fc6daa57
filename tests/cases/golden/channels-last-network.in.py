"""A residual block at inference."""

import torch
import torch.nn as nn


# kernel-lsp: workload images=f32[64,128,56,56] eval
class Block(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, images):
        hidden = torch.relu(self.norm1(self.first(images)))
        return torch.relu(self.norm2(self.second(hidden)) + images)
