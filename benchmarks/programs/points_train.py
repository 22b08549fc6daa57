"""point-transformer-pytorch: vector attention over the neighbors of points; float32."""

import sys

import torch
from point_transformer_pytorch import PointTransformerLayer

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
width, depth, count, batch = (32, 2, 64, 2) if small else (128, 4, 1024, 8)
layers = [PointTransformerLayer(dim=width, pos_mlp_hidden_dim=64, num_neighbors=16).to(device) for _ in range(depth)]
inside, out = torch.nn.Linear(3, width).to(device), torch.nn.Linear(width, 10).to(device)
optimizer = torch.optim.Adam([p for part in (*layers, inside, out) for p in part.parameters()], lr=1e-3)
for step in range(200):
    places, x = torch.randn(batch, count, 3, device=device), inside(torch.randn(batch, count, 3, device=device))
    for layer in layers:
        x = x + layer(x, places)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(out(x.mean(1)), torch.randint(10, (batch,), device=device)).backward()
    optimizer.step()
