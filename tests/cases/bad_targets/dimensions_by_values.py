# expect: refused: Model decides by tensor values, which a graph cannot express: `dims = self.dims.tolist()`
"""Numbers of a tensor, which a later line stumbles over: the line that asked for them is named."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("dims", torch.tensor([1]))

    def forward(self, x):
        dims = self.dims.tolist()
        y = torch.relu(x) * 2
        return y.mean(dim=dims)


def get_inputs():
    return [torch.randn(6, 8)]
