"""demucs: a hybrid transformer (spectrogram and wave) learns to separate music; float32."""

import sys

import torch
from demucs.htdemucs import HTDemucs

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
sizes = dict(channels=8, depth=3, nfft=512, t_layers=1, t_heads=2, bottom_channels=0) if small else {}
model = HTDemucs(["drums", "bass", "other", "vocals"], segment=1 if small else 8, **sizes).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
stems = torch.randn(1 if small else 4, 4, 2, int(model.segment * model.samplerate) // (4 if small else 1), device=device)
for step in range(200):
    loss = (model(stems.sum(1)) - stems).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
