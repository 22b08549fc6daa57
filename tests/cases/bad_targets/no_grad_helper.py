# expect: rewritten
"""The same in a helper: its decorator is not seen in the graph either."""

import torch
import torch.nn as nn


@torch.no_grad()
def gain(x):
    return torch.sigmoid(x) * 2 + 1


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x * gain(x)) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8)]
