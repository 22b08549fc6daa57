"""Updates the running statistics by hand, as torch does."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        n, y = self.norm, self.linear(x)
        if not self.training:
            return torch.relu(n(y))
        var, mean = torch.var_mean(y, dim=0, unbiased=False)
        with torch.no_grad():
            n.num_batches_tracked += 1
            n.running_mean.lerp_(mean, n.momentum)
            n.running_var.lerp_(var * (len(y) / (len(y) - 1)), n.momentum)
        return torch.relu((y - mean) * torch.rsqrt(var + n.eps) * n.weight + n.bias)
