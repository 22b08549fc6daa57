"""An image as a sequence of patches."""

import torch.nn as nn


# kernel-lsp: workload images=f32[64,3,224,224]
class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Conv2d(3, 384, kernel_size=16, stride=16)

    def forward(self, images):
        tokens = self.project(images).flatten(2).transpose(1, 2)
        return tokens
