"""monai: a U-Net learns to segment volumes with the Dice loss; float16 as on a GPU (bfloat16 on a CPU)."""

import sys

import torch
from monai.losses import DiceCELoss
from monai.networks.nets import UNet

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
channels = (8, 16, 32) if small else (16, 32, 64, 128, 256)
model = UNet(3, 1, 2, channels, (2,) * (len(channels) - 1), num_res_units=2, norm="batch").to(device)
criterion = DiceCELoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
scaler, side = torch.amp.GradScaler(device), 16 if small else 96
volumes = torch.randn(2 if small else 4, 1, side, side, side, device=device)
labels = torch.randint(2, volumes.shape, device=device)
for step in range(200):
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
        loss = criterion(model(volumes), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer), scaler.update()
