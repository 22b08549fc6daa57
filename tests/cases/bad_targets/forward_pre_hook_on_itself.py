# expect: refused: Model has a forward pre-hook (lambda), which a rewritten forward would run twice or not at all
"""A hook of the target itself changes what forward is given."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_forward_pre_hook(lambda module, args: (args[0] * 3 + 1,))

    def forward(self, x):
        return torch.sum(self.linear(F.dropout(x, 0.5, False)), dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(6, 8)]
