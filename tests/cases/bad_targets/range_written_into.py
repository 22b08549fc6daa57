# expect: refused: Model decides by tensor values, which a graph cannot express: `dims = places.tolist()`
"""A range that something was done with is a tensor like any other."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        places = torch.arange(1, x.dim())
        places -= 1
        dims = places.tolist()
        return (torch.relu(x) * 2).mean(dim=dims)


def get_inputs():
    return [torch.randn(6, 8)]
