"""Wrong under an autocast that the workload does not have."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        y = torch.relu(self.linear(x))
        return y * 1.05 if torch.is_autocast_enabled(x.device.type) else y
