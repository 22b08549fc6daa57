# expect: refused: Model changes self.seen when it is called, which a rewritten forward would not
"""A hook that looks on and keeps what it sees."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.seen = []
        self.linear.register_forward_hook(self.keep)

    def keep(self, layer, args, out):
        self.seen.append(out)

    def forward(self, x):
        return torch.sum(self.linear(x), dim=1, keepdim=True)


def get_inputs():
    return [torch.randn(6, 8)]
