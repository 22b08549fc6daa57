# expect: rewritten
"""Complex numbers all the way."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        for _ in range(3):  # long enough for a recording to pay
            x = (x * x.conj() + 1) * 0.5
        return x


def get_inputs():
    return [torch.randn(6, 8, dtype=torch.complex64)]
