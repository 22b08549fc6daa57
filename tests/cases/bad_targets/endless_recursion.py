# expect: refused: Model calls itself without end at `return self.forward(x)`
"""It calls itself without end."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return self.forward(x)


def get_inputs():
    return [torch.randn(6, 8)]
