"""Near miss: without the maximum it overflows where it overflows; a stable form is another function.

Family: softmax.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        e = torch.exp(x)
        return e / e.sum(dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(4096, 8192)]


def get_init_inputs():
    return []
