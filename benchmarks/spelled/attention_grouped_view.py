"""Grouped-query attention: queries viewed in groups, keys broadcast.

Family: attention.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 64**-0.5

    def forward(self, q, k, v):
        b, h, n, d = q.shape
        g = h // k.shape[1]
        grouped = q.view(b, k.shape[1], g, n, d)
        scores = torch.matmul(grouped, k[:, :, None].transpose(-1, -2)) * self.scale
        out = torch.matmul(scores.softmax(-1), v[:, :, None])
        return out.reshape(b, h, n, d)


def get_inputs():
    return [torch.randn(4, 16, 1024, 64), torch.randn(4, 4, 1024, 64), torch.randn(4, 4, 1024, 64)]


def get_init_inputs():
    return []
