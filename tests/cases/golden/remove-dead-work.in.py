"""Dropout at inference and a value that nobody reads."""

import torch
import torch.nn as nn


# kernel-lsp: workload hidden=f32[4096,4096] eval
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden):
        energy = hidden.square().sum()
        return self.dropout(hidden) * 2.0
