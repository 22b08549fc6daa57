# expect: refused: Model calls an operator that has no rule for shapes at `return torch.relu(double(x)) * 2 + 1`
"""An operator of the author that has no rule for shapes."""

import torch
import torch.nn as nn
import torch.nn.functional as F


@torch.library.custom_op("bad_targets::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.relu(double(x)) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8)]
