"""A recurrence written by hand."""

import torch
import torch.nn as nn


# kernel-lsp: workload words=f32[64,32,128]
class Reader(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.see, self.remember = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, words):
        memory = torch.zeros_like(words[0])
        for word in words:
            memory = torch.tanh(self.see(word) + self.remember(memory))
        return memory
