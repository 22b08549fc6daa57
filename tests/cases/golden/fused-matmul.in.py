"""The first half of a feed-forward block, with a gate from outside."""

import torch
import torch.nn as nn
import torch.nn.functional as F


# kernel-lsp: workload tokens=f32[8,512,1024] gate=f32[8,512,4096]
class GatedProjection(nn.Module):
    def __init__(self, width=1024, hidden=4096):
        super().__init__()
        self.up = nn.Linear(width, hidden)

    def forward(self, tokens, gate):
        hidden = self.up(tokens)
        return F.gelu(hidden) * gate
