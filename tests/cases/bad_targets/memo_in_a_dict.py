# expect: refused: Model changes the global MASKS when it is called, which a rewritten forward would not
"""It keeps results by size in a dictionary of the file."""

import torch
import torch.nn as nn

MASKS = {}


class Model(nn.Module):
    def forward(self, x):
        if x.shape not in MASKS:
            MASKS[x.shape] = torch.ones(x.shape).tril()
        return torch.relu(x * MASKS[x.shape]) + 1


def get_inputs():
    return [torch.randn(6, 8)]
