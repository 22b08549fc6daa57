"""Repeated keys and values before the library's attention.

Family: attention.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, q, k, v):
        k = k.repeat_interleave(4, dim=1)
        v = v.repeat_interleave(4, dim=1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def get_inputs():
    return [
        torch.randn(4, 16, 1024, 64, dtype=torch.bfloat16),
        torch.randn(4, 4, 1024, 64, dtype=torch.bfloat16),
        torch.randn(4, 4, 1024, 64, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return []
