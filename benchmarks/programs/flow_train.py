"""zuko: a neural spline flow learns a density; its modules return distributions; float32."""

import sys

import torch
import zuko

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
hidden, batch = ((128, 128), 256) if small else ((1024, 1024), 8192)
flow = zuko.flows.NSF(features=8, context=4, transforms=3, hidden_features=hidden).to(device)
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
for step in range(300):
    loss = -flow(torch.randn(batch, 4, device=device)).log_prob(torch.randn(batch, 8, device=device)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
