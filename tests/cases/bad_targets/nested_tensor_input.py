# expect: refused: get_inputs() makes a nested tensor, whose rows have sizes of their own
"""It is given a ragged tensor."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.relu(x * 2)


def get_inputs():
    return [torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)]
