# expect: refused: Model decides by tensor values, which a graph cannot express: `dims = places.tolist()`
"""A range of which a part is written into, by a view of it."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        places = torch.arange(1, x.dim())
        first = places.unbind()[0]
        first -= 1
        dims = places.tolist()
        return (torch.relu(x) * 2).mean(dim=dims)


def get_inputs():
    return [torch.randn(6, 8)]
