"""How much of each direction a projection keeps."""

import torch
import torch.nn as nn


# kernel-lsp: workload encoder=f32[512,2048] decoder=f32[2048,512]
class Kept(nn.Module):
    def forward(self, encoder, decoder):
        kept = torch.diagonal(encoder @ decoder)
        return kept / kept.abs().max()
