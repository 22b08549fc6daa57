# expect: rewritten
"""A graph break that the author asked for."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        y = torch.relu(x) * 2
        torch._dynamo.graph_break()
        return torch.sigmoid(y) + 1


def get_inputs():
    return [torch.randn(6, 8)]
