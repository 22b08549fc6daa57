"""Exponentiates without subtracting the maximum."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        e = torch.exp(x)
        return e / e.sum(dim=-1, keepdim=True), torch.logsumexp(x, dim=-1), nn.functional.gelu(x)
