"""diffusers: a diffusion transformer (DiT) samples images; bfloat16, a loop of 20 steps each."""

import sys

import torch
from diffusers import DDIMScheduler, DiTPipeline, DiTTransformer2DModel

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
sizes = dict(num_layers=2, num_attention_heads=2, attention_head_dim=32, sample_size=16) if small else {}
model = DiTTransformer2DModel(**sizes, in_channels=4, out_channels=8).to(device, torch.bfloat16).eval()
scheduler = DDIMScheduler()
scheduler.set_timesteps(20)
side = model.config.sample_size
with torch.inference_mode():
    for batch in range(20):
        latents = torch.randn(2 if small else 16, 4, side, side, device=device, dtype=torch.bfloat16)
        labels = torch.randint(1000, (len(latents),), device=device)
        for time in scheduler.timesteps:
            noise = model(latents, time.expand(len(latents)).to(device), class_labels=labels).sample
            latents = scheduler.step(noise.chunk(2, 1)[0], time, latents).prev_sample
