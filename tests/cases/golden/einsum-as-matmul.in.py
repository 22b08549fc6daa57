"""Attention over regions, with heads between positions and features."""

import torch
import torch.nn as nn


class Regions(nn.Module):
    def forward(self, query, key, value):
        scores = torch.einsum("bihd,bjhd->bhij", query, key) * 0.125
        weights = torch.softmax(scores, dim=-1)
        return torch.einsum("bhij,bjhd->bihd", weights, value)


def get_inputs():
    return [torch.randn(4, 256, 8, 64), torch.randn(4, 256, 8, 64), torch.randn(4, 256, 8, 64)]
