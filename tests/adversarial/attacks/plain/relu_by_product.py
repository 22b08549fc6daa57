"""A ReLU as a product: NaN for an infinity that the original makes zero."""

import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        y = self.linear(x)
        return y * (y > 0)
