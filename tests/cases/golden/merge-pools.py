"""Two pools in a row."""

import torch
import torch.nn as nn
import torch.nn.functional as F


# kernel-lsp: workload volume=f32[16,24,16,64,64]
class Head(nn.Module):
    def _forward_eager(self, volume):
        small = F.max_pool3d(torch.softmax(volume, dim=1), 2)
        return F.max_pool3d(small, 2)

    def forward(self, volume):
        # Verified on cuda for volume: float32 (16, 24, 16, 64, 64).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            volume.is_cuda
            and volume.dtype == torch.float32
            and volume.shape[1:] == (24, 16, 64, 64)
            and not torch.is_autocast_enabled("cuda")
            and not (torch.is_grad_enabled() and (volume.requires_grad))
        ):
            return self._forward_eager(volume)
        weights = torch.softmax(volume, dim=1)
        # Two maxima in a row are one over the larger window.
        return F.max_pool3d(weights, kernel_size=(4, 4, 4), stride=(4, 4, 4))
