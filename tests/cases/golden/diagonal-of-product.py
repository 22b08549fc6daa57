"""How much of each direction a projection keeps."""

import torch
import torch.nn as nn


# kernel-lsp: workload encoder=f32[512,2048] decoder=f32[2048,512]
class Kept(nn.Module):
    def _forward_eager(self, encoder, decoder):
        kept = torch.diagonal(encoder @ decoder)
        return kept / kept.abs().max()

    def forward(self, encoder, decoder):
        # Verified on cuda for encoder: float32 (512, 2048); decoder: float32 (2048, 512).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            encoder.is_cuda
            and encoder.dtype == torch.float32
            and encoder.shape == (512, 2048)
            and decoder.is_cuda
            and decoder.dtype == torch.float32
            and decoder.shape == (2048, 512)
            and not torch.is_autocast_enabled("cuda")
        ):
            return self._forward_eager(encoder, decoder)
        # Element i of diagonal(A @ B) is the sum over row i of A * B.T.
        products = encoder * decoder.transpose(-2, -1)
        kept = torch.sum(products, dim=-1)
        return kept / torch.max(torch.abs(kept))
