"""egnn-pytorch: an equivariant graph network learns from clouds of points; float32."""

import sys

import torch
from egnn_pytorch import EGNN_Network

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
width, depth, points, batch = (32, 3, 128, 2) if small else (128, 6, 512, 8)
net = EGNN_Network(num_tokens=21, num_positions=points, dim=width, depth=depth, num_nearest_neighbors=8, coor_weights_clamp_value=2.0).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(200):
    kinds, places = torch.randint(21, (batch, points), device=device), torch.randn(batch, points, 3, device=device)
    features, moved = net(kinds, places, mask=torch.ones_like(kinds).bool())
    loss = (features.mean(dim=-1) - 1).square().mean() + (moved - places).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
