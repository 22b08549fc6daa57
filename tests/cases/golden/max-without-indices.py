"""The strongest response over all channels."""

import torch
import torch.nn as nn


class Strongest(nn.Module):
    def _forward_eager(self, response):
        strongest = torch.max(response, dim=1, keepdim=True).values
        return torch.sigmoid(strongest - 0.5)

    def forward(self, response):
        # Verified on cuda for response: float32 (8, 64, 28, 28).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            response.is_cuda
            and response.dtype == torch.float32
            and response.shape[1:] == (64, 28, 28)
            and not torch.is_autocast_enabled("cuda")
            and not (torch.is_grad_enabled() and (response.requires_grad))
        ):
            return self._forward_eager(response)
        # The values alone: nobody reads the indices.
        strongest = torch.amax(response, dim=1, keepdim=True)
        return torch.sigmoid(strongest - 0.5)


def get_inputs():
    return [torch.randn(8, 64, 28, 28)]
