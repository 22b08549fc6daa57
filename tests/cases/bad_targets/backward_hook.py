# expect: refused: Model.linear has a backward hook (lambda), which a rewritten forward would run twice or not at all
"""A hook on the gradients of a layer."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.linear.register_full_backward_hook(lambda layer, into, out: (into[0] * 2,))

    def forward(self, x):
        return torch.sum(self.linear(F.dropout(x, 0.5, False)), dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(6, 8)]
