"""A module that cannot be one graph, and functions beside it."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)

    def forward(self, x, scale=1.0):
        h = self.a(x)
        h = F.silu(h) * torch.sigmoid(h) + 0.5 * h * torch.tanh(h)
        if h.abs().max() > 100:
            h = h / 100
        rate = h.mean().item()
        return (self.b(h) * scale + rate).relu()


@torch.no_grad()
def prepare(x):
    return torch.tanh(x) * 2 + torch.sigmoid(x) * x


def loss_of(logits, targets, keep=None):
    soft = -F.log_softmax(logits.float(), dim=-1).mean(-1)
    return F.cross_entropy(logits.view(-1, 64), targets) + 0.1 * soft.mean()


def held(x):
    """A table holds it, which would go on calling the original."""
    return x.sigmoid()


TABLE = {"held": held}
