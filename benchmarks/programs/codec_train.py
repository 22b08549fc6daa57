"""encodec: an audio codec (weight-normed convolutions, LSTM, residual quantizer) learns; float32."""

import sys

import torch
from encodec.model import EncodecModel

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
model = EncodecModel._get_model([1.5, 3.0], sample_rate=24000, channels=1, causal=True, model_norm="weight_norm").to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, betas=(0.5, 0.9))
sound = torch.randn(1 if small else 16, 1, 2400 if small else 24000, device=device)
for step in range(200):
    loss = (model(sound) - sound).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
