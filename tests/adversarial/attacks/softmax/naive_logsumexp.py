"""Takes the logarithm of a sum that overflows."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1), torch.exp(x).sum(dim=-1).log(), nn.functional.gelu(x)
