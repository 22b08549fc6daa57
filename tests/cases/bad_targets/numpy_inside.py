# expect: refused: Model leaves torch by .numpy() at `y = torch.from_numpy(numpy.tanh(x.detach().numpy()))`
"""A part of it is numpy."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        import numpy
        y = torch.from_numpy(numpy.tanh(x.detach().numpy()))
        return torch.relu(y) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8)]
