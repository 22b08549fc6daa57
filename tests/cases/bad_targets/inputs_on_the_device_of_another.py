# expect: rewritten
"""Where the second input lies follows from the first: no two devices are meant."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, scale):
        return torch.relu(x * scale) * 2 + 1


def get_inputs():
    x = torch.randn(6, 8, device="cuda")
    return [x, torch.ones(8, device=x.device)]
