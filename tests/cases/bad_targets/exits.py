# expect: refused: Model ends the process
"""It ends the process."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        raise SystemExit(3)


def get_inputs():
    return [torch.randn(6, 8)]
