"""Writes the stable formulas out and shares their exponentials."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        top = x.amax(dim=-1, keepdim=True)
        e = torch.exp(x - top)
        total = e.sum(dim=-1, keepdim=True)
        return e / total, (top + total.log()).squeeze(-1), nn.functional.gelu(x)
