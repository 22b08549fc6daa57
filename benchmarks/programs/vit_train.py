"""transformers: a small ViT learns to classify images, float32 with TF32."""

import sys

import torch
from transformers import ViTConfig, ViTForImageClassification

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")
sizes = dict(image_size=32, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
sizes = (
    sizes
    if small
    else dict(
        image_size=224, hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536
    )
)
model = ViTForImageClassification(ViTConfig(**sizes, num_labels=1000)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
images = torch.randn(2 if small else 64, 3, sizes["image_size"], sizes["image_size"], device=device)
labels = torch.randint(1000, (len(images),), device=device)
for step in range(200):
    model(images, labels=labels).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
