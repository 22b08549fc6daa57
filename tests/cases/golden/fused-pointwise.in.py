"""Bias, tanh-GELU by hand and a scale."""

import torch
import torch.nn as nn


# kernel-lsp: workload hidden=f32[8192,3072]
class Tail(nn.Module):
    def __init__(self, size=3072):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, hidden):
        shifted = hidden + self.bias
        inner = 0.7978845608 * (shifted + 0.044715 * shifted**3)
        return 0.5 * shifted * (1 + torch.tanh(inner))
