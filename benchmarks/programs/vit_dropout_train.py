"""vit-pytorch: a vision transformer learns to classify images; bfloat16 autocast."""

import sys

import torch
from vit_pytorch import ViT

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
side, width, depth, heads = (64, 64, 2, 2) if small else (256, 1024, 6, 16)
sizes = dict(image_size=side, patch_size=32, dim=width, depth=depth, heads=heads, mlp_dim=2 * width)
model = ViT(**sizes, num_classes=1000, dropout=0.1, emb_dropout=0.1).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
images = torch.randn(4 if small else 64, 3, side, side, device=device)
labels = torch.randint(1000, (len(images),), device=device)
for step in range(200):
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
