"""The cosine embedding loss with a margin.

Family: loss.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, a, b, y):
        return F.cosine_embedding_loss(a, b, y, margin=0.2)


def get_inputs():
    return [
        torch.randn(16384, 1024),
        torch.randn(16384, 1024),
        torch.randint(0, 2, (16384,)) * 2.0 - 1.0,
    ]


def get_init_inputs():
    return []
