"""perceiver-pytorch: latents read pictures by cross-attention; bfloat16 autocast."""

import sys

import torch
from perceiver_pytorch import Perceiver

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
depth, latents, size, batch = (2, 16, 16, 2) if small else (6, 256, 64, 16)
model = Perceiver(input_channels=3, input_axis=2, num_freq_bands=6, max_freq=10.0, depth=depth, num_latents=latents,
                  latent_dim=64 if small else 512, latent_heads=8, num_classes=10, weight_tie_layers=True).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(200):
    pictures, labels = torch.randn(batch, size, size, 3, device=device), torch.randint(10, (batch,), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(pictures), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
