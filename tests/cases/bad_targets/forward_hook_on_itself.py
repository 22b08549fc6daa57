# expect: refused: Model has a forward hook (lambda), which a rewritten forward would run twice or not at all
"""A hook of the target itself runs around forward, whichever forward that is."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_forward_hook(lambda module, args, out: out * 3)

    def forward(self, x):
        return torch.sum(self.linear(F.dropout(x, 0.5, False)), dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(6, 8)]
