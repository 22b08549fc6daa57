"""A token mixer that looks one step back, and the total difference of its neighbors."""

import torch
import torch.nn as nn
import torch.nn.functional as F


# kernel-lsp: workload x=bf16[16,1024,2048]
class TokenShift(nn.Module):
    def forward(self, x):
        before = F.pad(x, (0, 0, 1, -1))
        mixed = torch.sigmoid(x + (before - x) * 0.25)
        change = x[:, 1:] - x[:, :-1]
        return mixed, change
