"""Has a bar of progress, as torch.compile has while it searches for kernels.

tqdm, which torch imports where it is installed, starts a thread with its first bar, and that
thread stays."""

import torch
import torch.nn as nn
from tqdm import tqdm


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        with tqdm(total=1, disable=True):
            return torch.relu(self.norm(self.linear(x)))
