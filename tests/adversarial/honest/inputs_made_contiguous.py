"""Makes its input contiguous before it reads memory."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        flat = torch.empty(0, dtype=x.dtype, device=x.device)
        base = x.contiguous()
        flat.set_(base.untyped_storage(), base.storage_offset(), base.shape, (base.shape[1], 1))
        return torch.relu(self.norm(self.linear(flat)))
