# expect: refused: the input x of Model is sparse_coo
"""It is given a sparse tensor."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x):
        return torch.relu(torch.sparse.mm(x, torch.ones(6, 4))) * 2 + 1


def get_inputs():
    return [torch.eye(6).to_sparse()]
