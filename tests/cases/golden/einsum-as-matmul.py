"""Attention over regions, with heads between positions and features."""

import torch
import torch.nn as nn


class Regions(nn.Module):
    def _forward_eager(self, query, key, value):
        scores = torch.einsum("bihd,bjhd->bhij", query, key) * 0.125
        weights = torch.softmax(scores, dim=-1)
        return torch.einsum("bhij,bjhd->bihd", weights, value)

    def forward(self, query, key, value):
        # Verified on cuda for query: float32 (4, 256, 8, 64); key: float32 (4, 256, 8, 64); value: float32 (4, 256, 8, 64).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            query.is_cuda
            and query.dtype == torch.float32
            and query.shape[1:] == (256, 8, 64)
            and key.is_cuda
            and key.dtype == torch.float32
            and key.shape == (query.shape[0], 256, 8, 64)
            and value.is_cuda
            and value.dtype == torch.float32
            and value.shape == (query.shape[0], 256, 8, 64)
            and not torch.is_autocast_enabled("cuda")
        ):
            return self._forward_eager(query, key, value)
        # This is einsum('bihd,bjhd->bhij').
        product = query.permute(0, 2, 1, 3) @ key.permute(0, 2, 3, 1)
        scores = product * 0.125
        weights = torch.softmax(scores, dim=-1)
        # This is einsum('bhij,bjhd->bihd').
        product = weights @ value.permute(0, 2, 1, 3)
        return product.permute(0, 2, 1, 3)


def get_inputs():
    return [torch.randn(4, 256, 8, 64), torch.randn(4, 256, 8, 64), torch.randn(4, 256, 8, 64)]
