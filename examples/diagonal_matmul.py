"""Per-channel gains written as a product with a diagonal matrix."""

import torch
import torch.nn as nn


class Gain(nn.Module):
    """Scales row i of ``signal`` by ``gain[i]``."""

    def forward(self, gain, signal):
        return torch.diag(gain) @ signal


CHANNELS, SAMPLES = 2048, 1536


def get_inputs():
    return [torch.rand(CHANNELS), torch.randn(CHANNELS, SAMPLES)]


def get_init_inputs():
    return []
