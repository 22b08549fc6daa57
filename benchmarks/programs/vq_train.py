"""vector-quantize-pytorch: a quantized autoencoder of images learns its codebook; float32."""

import sys

import torch
from torch import nn
from vector_quantize_pytorch import VectorQuantize

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
width = 32 if small else 256
encoder = nn.Sequential(nn.Conv2d(3, width, 4, 2, 1), nn.GELU(), nn.Conv2d(width, width, 4, 2, 1)).to(device)
quantize = VectorQuantize(dim=width, codebook_size=64 if small else 1024, accept_image_fmap=True).to(device)
decoder = nn.Sequential(nn.ConvTranspose2d(width, width, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(width, 3, 4, 2, 1)).to(device)
optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=3e-4)
images = torch.randn(4 if small else 32, 3, 32 if small else 128, 32 if small else 128, device=device)
for step in range(200):
    quantized, codes, commitment = quantize(encoder(images))
    loss = (decoder(quantized) - images).abs().mean() + commitment.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
