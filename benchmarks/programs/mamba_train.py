"""mambapy: a state-space model of plain PyTorch learns sequences, bfloat16 autocast."""

import sys

import torch
from mambapy.mamba import Mamba, MambaConfig

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
width, layers, length = (32, 2, 16) if small else (512, 8, 512)
model = Mamba(MambaConfig(d_model=width, n_layers=layers)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(2 if small else 8, length + 1, width, device=device)
for step in range(200):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = (model(x[:, :-1]) - x[:, 1:]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
