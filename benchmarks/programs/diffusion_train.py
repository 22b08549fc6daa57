"""diffusers: a U-Net learns to take noise away (DDPM); bfloat16 autocast, gradients clipped."""

import sys

import torch
from diffusers import DDPMScheduler, UNet2DModel

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
sizes = dict(sample_size=16, block_out_channels=(32, 64, 64, 64)) if small else dict(sample_size=64)
model = UNet2DModel(**sizes, norm_num_groups=32).to(device)
scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
images = torch.randn(2 if small else 16, 3, sizes["sample_size"], sizes["sample_size"], device=device)
for step in range(200):
    noise, times = torch.randn_like(images), torch.randint(1000, (len(images),), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        predicted = model(scheduler.add_noise(images, noise, times), times, return_dict=False)[0]
        loss = torch.nn.functional.mse_loss(predicted, noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(), optimizer.zero_grad()
