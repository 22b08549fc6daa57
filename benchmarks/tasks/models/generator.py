"""Transposed convolutions from a code to an image.

Family: cnn.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(128, 128, 4), nn.BatchNorm2d(128), nn.ReLU(),
            nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh(),
        )
        self.eval()

    def forward(self, z):
        return self.layers(z)


def get_inputs():
    return [torch.randn(512, 128, 1, 1)]


def get_init_inputs():
    return []
