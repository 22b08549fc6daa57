"""Embeddings, pairwise products, a perceptron.

Family: mlp.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100000, 64)
        self.top = nn.Linear(26 * 26, 256)
        self.out = nn.Linear(256, 1)

    def forward(self, index):
        e = self.table(index)
        h = torch.bmm(e, e.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.out(torch.relu(self.top(h))))


def get_inputs():
    return [torch.randint(0, 100000, (4096, 26))]


def get_init_inputs():
    return []
