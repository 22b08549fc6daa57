# expect: rewritten
"""A part through which no gradient flows: rewritten only for calls that record none."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            scale = torch.sigmoid(x) * 2 + 1
        return torch.relu(x * scale) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8)]
