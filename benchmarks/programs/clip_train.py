"""open_clip: images and texts learn from each other (CLIP); bfloat16 autocast."""

import sys

import open_clip
import torch

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
vision = dict(image_size=32, layers=2, width=64, patch_size=16, head_width=32) if small else dict(image_size=224, layers=12, width=768, patch_size=32)
text = dict(context_length=16, vocab_size=500, width=64, heads=2, layers=2) if small else dict(context_length=77, vocab_size=49408, width=512, heads=8, layers=12)
model = open_clip.CLIP(512, vision, text).to(device)
criterion = open_clip.ClipLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), eps=1e-6)
images = torch.randn(4 if small else 128, 3, vision["image_size"], vision["image_size"], device=device)
texts = torch.randint(1, text["vocab_size"], (len(images), text["context_length"]), device=device)
for step in range(200):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = criterion(*model(images, texts))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
