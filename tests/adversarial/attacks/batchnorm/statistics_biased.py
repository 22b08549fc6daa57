"""Updates the running variance with the biased estimate."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        n, y = self.norm, self.linear(x)
        with torch.no_grad():
            n.running_mean.lerp_(y.mean(0), n.momentum)
            n.running_var.lerp_(y.var(0, unbiased=False), n.momentum)
            n.num_batches_tracked += 1
        return torch.relu(
            nn.functional.batch_norm(y, None, None, n.weight, n.bias, True, 0.0, n.eps)
        )
