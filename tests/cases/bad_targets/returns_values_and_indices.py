# expect: refused: Model returns a torch.return_types.max
"""The result is torch's own named pair."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.max(torch.relu(x * 2) + 1, dim=1)


def get_inputs():
    return [torch.randn(6, 8)]
