# expect: refused: Model calls an operator that has no rule for shapes at `return torch.relu(triple(x * 2 + 1)) * 2 + 1`
"""An operator of the author is a step like any other; what stands around it may change."""

import torch
import torch.nn as nn
import torch.nn.functional as F


@torch.library.custom_op("bad_targets::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@triple.register_fake
def _(x):
    return torch.empty_like(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.relu(triple(x * 2 + 1)) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8)]
