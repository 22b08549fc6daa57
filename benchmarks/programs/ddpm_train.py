"""denoising-diffusion-pytorch: a U-Net with linear attention learns to take noise away; bfloat16 autocast."""

import sys

import torch
from denoising_diffusion_pytorch import GaussianDiffusion, Unet

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
net = Unet(dim=16 if small else 64, dim_mults=(1, 2) if small else (1, 2, 4, 8))
side = 16 if small else 128
model = GaussianDiffusion(net, image_size=side, timesteps=1000).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=8e-5)
images = torch.rand(2 if small else 16, 3, side, side, device=device)
for step in range(200):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(images)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(), optimizer.zero_grad()
