# expect: refused: Model.weight is sparse_csr
"""A weight in compressed rows."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.eye(8).to_sparse_csr()

    def forward(self, x):
        return torch.relu(self.weight @ x.T) * 2 + 1


def get_inputs():
    return [torch.randn(6, 8)]
