"""neuraloperator: a Fourier neural operator learns a map of functions, by its own losses; float32."""

import sys

import torch
from neuralop import LpLoss
from neuralop.models import FNO
from neuralop.training import AdamW

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
modes, width, size, batch = (8, 16, 32, 4) if small else (16, 64, 128, 32)
model = FNO(n_modes=(modes, modes), in_channels=1, out_channels=1, hidden_channels=width).to(device)
optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
loss_of = LpLoss(d=2, p=2)
for step in range(200):
    x = torch.randn(batch, 1, size, size, device=device)
    optimizer.zero_grad()
    loss = loss_of(model(x), x.roll(1, -1))
    loss.backward()
    optimizer.step()
