"""Query, key and value of an attention layer, each with a layer of its own."""

import torch.nn as nn


# kernel-lsp: workload tokens=f32[32,512,256]
class Projections(nn.Module):
    def __init__(self, width=256, heads=8):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, tokens):
        batch, length, width = tokens.shape
        shape = batch, length, self.heads, width // self.heads
        query = self.query(tokens).view(shape).transpose(1, 2)
        key = self.key(tokens).view(shape).transpose(1, 2)
        value = self.value(tokens).view(shape).transpose(1, 2)
        return (query @ key.transpose(-2, -1)).softmax(-1) @ value
