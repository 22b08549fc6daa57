"""An outer product in all but name: the output is the traffic.

Family: matmul.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(16384, 16), torch.randn(16, 16384)]


def get_init_inputs():
    return []
