"""Sums of decays by a masked difference of running sums.

Family: recurrent.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        total = torch.cumsum(x, dim=-1)
        difference = total[..., :, None] - total[..., None, :]
        keep = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).tril()
        return torch.exp(difference.masked_fill(~keep, float("-inf")))


def get_inputs():
    return [-torch.rand(64, 8, 128)]


def get_init_inputs():
    return []
