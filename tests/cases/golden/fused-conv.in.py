"""The first block of an image network."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 24, 3, padding=1)
        self.norm = nn.BatchNorm2d(24).eval()

    def forward(self, image):
        features = self.norm(self.conv(image))
        active = F.hardswish(features)
        return F.max_pool2d(active, 2)


def get_inputs():
    return [torch.randn(64, 3, 128, 128)]
