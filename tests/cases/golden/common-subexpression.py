"""Features scaled to unit spread, with the centering written twice."""

import torch
import torch.nn as nn


class Standardized(nn.Module):
    def _forward_eager(self, features):
        centered = features - features.mean(dim=1, keepdim=True)
        spread = (features - features.mean(dim=1, keepdim=True)).abs().amax(dim=1, keepdim=True)
        return centered / (spread + 1e-6)

    def forward(self, features):
        # Verified on cuda for features: float32 (256, 4096).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            features.is_cuda
            and features.dtype == torch.float32
            and features.shape[1:] == (4096,)
            and not torch.is_autocast_enabled("cuda")
        ):
            return self._forward_eager(features)
        centered = features - torch.mean(features, dim=1, keepdim=True)
        spread = torch.amax(torch.abs(centered), dim=1, keepdim=True)
        return centered / (spread + 1e-06)


def get_inputs():
    return [torch.randn(256, 4096)]
