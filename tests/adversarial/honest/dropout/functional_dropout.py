"""Calls dropout as a function on the same stream."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.drop = nn.Dropout(0.25)

    def forward(self, x):
        y = torch.addmm(self.linear.bias, x, self.linear.weight.T)
        return F.dropout(y.relu_(), self.drop.p, self.training)
