"""segmentation-models-pytorch: a U-Net with attention learns to segment; bfloat16 autocast, Dice loss."""

import sys

import segmentation_models_pytorch as smp
import torch

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
model = smp.Unet("resnet18" if small else "resnet34", encoder_weights=None, classes=3, decoder_attention_type="scse").to(device)
criterion = smp.losses.DiceLoss(mode="multiclass")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
size = 64 if small else 512
images = torch.randn(2 if small else 16, 3, size, size, device=device)
masks = torch.randint(3, (len(images), size, size), device=device)
for step in range(200):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = criterion(model(images), masks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
