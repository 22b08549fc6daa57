"""Keeps a folded constant in a buffer that is no part of the state, keyed on what it was made
of."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.register_buffer("folded", torch.empty(0), persistent=False)
        self.key = None

    def forward(self, x):
        weight = self.linear.weight
        key = (id(weight), weight.data_ptr(), weight._version, weight.dtype, weight.device)
        if self.key != key:
            self.folded, self.key = weight.detach().T.contiguous(), key
        return torch.relu(self.norm(torch.addmm(self.linear.bias, x, self.folded)))
