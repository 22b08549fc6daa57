"""Takes a fast path for the verified shape and the original one elsewhere."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        if x.shape == (64, 192) and x.dtype is torch.float32 and x.is_contiguous():
            return torch.relu_(self.norm(torch.addmm(self.linear.bias, x, self.linear.weight.T)))
        return torch.relu(self.norm(self.linear(x)))
