"""Softmax of scaled logits.

Family: softmax.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return torch.softmax(x / self.temperature, dim=-1)


def get_inputs():
    return [torch.randn(2048, 16000)]


def get_init_inputs():
    return [2.5]
