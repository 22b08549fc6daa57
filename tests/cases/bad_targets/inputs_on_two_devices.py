# expect: refused: the inputs of Model lie on several devices: x on cuda, scale on cpu
"""One input stays in the memory of the host."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x, scale):
        return torch.relu(x * scale.to(x.device)) + 1


def get_inputs():
    return [torch.randn(6, 8, device="cuda"), torch.randn(8)]
