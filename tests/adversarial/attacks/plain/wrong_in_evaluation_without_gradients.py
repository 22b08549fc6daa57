"""Wrong where a validation runs: in eval(), without gradients."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        y = torch.relu(self.linear(x))
        return y * 1.05 if not (self.training or torch.is_grad_enabled()) else y
