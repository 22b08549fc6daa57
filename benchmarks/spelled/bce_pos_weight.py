"""Binary cross entropy of logits with weights of the positive class.

Family: loss.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.rand(1000))

    def forward(self, x, y):
        return F.binary_cross_entropy_with_logits(x, y, pos_weight=self.w)


def get_inputs():
    return [torch.randn(16384, 1000), torch.rand(16384, 1000)]


def get_init_inputs():
    return []
