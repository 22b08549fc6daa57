"""Takes all memory of the device."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        held = []
        while True:
            held.append(torch.ones(2**30, device=x.device))
