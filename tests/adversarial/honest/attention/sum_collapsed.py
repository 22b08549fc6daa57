"""Sums the weights instead of the outputs: one vector for a matrix."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = nn.Linear(width, width)

    def forward(self, q, k, v):
        scores = torch.baddbmm(
            q.new_empty(()), q.flatten(0, 1), k.flatten(0, 1).mT, beta=0, alpha=q.shape[-1] ** -0.5
        )
        mixed = (torch.softmax(scores, dim=-1) @ v.flatten(0, 1)).view(q.shape)
        return mixed, mixed @ self.out.weight.sum(dim=0) + self.out.bias.sum()
