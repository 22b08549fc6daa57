"""Embedding, LSTM, a classifier.

Family: recurrent.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layers = nn.Embedding(256, 128), nn.LSTM(128, 256, batch_first=True)
        self.head = nn.Linear(256, 256)

    def forward(self, index):
        return self.head(self.layers(self.table(index))[0][:, -1])


def get_inputs():
    return [torch.randint(0, 256, (64, 128))]


def get_init_inputs():
    return []
