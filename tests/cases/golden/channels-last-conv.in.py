"""Two convolutions with an activation between them."""

import torch
import torch.nn as nn


# kernel-lsp: workload images=f32[32,64,56,56]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.widen = nn.Conv2d(64, 128, kernel_size=3, padding=1)
        self.narrow = nn.Conv2d(128, 64, kernel_size=1)

    def forward(self, images):
        hidden = torch.relu(self.widen(images))
        return self.narrow(hidden)
