"""Features scaled to unit spread, with the centering written twice."""

import torch
import torch.nn as nn


class Standardized(nn.Module):
    def forward(self, features):
        centered = features - features.mean(dim=1, keepdim=True)
        spread = (features - features.mean(dim=1, keepdim=True)).abs().amax(dim=1, keepdim=True)
        return centered / (spread + 1e-6)


def get_inputs():
    return [torch.randn(256, 4096)]
