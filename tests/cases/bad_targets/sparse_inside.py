# expect: refused: to_sparse in Model is sparse_coo
"""A part of it computes on sparse tensors."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.relu(torch.sparse.mm(x.to_sparse(), torch.ones(8, 4))) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8)]
