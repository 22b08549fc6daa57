"""The head of a small language model: logits of 50257 classes, and their loss."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Head(nn.Module):
    def __init__(self, width: int, classes: int):
        super().__init__()
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, hidden, target):
        logits = self.head(hidden)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1))


def get_init_inputs():
    return [1024, 50257]


def get_inputs():
    return [
        torch.randn(8, 512, 1024, requires_grad=True),
        torch.randint(0, 50257, (8, 512)),
    ]
