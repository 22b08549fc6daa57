"""Runs a package with relative imports, config objects, tuples of states and a cache."""

import torch

from package.blocks import Stack
from package.settings import Cache, Settings

torch.manual_seed(0)
model = Stack(Settings()).eval()
with torch.no_grad():
    states = torch.zeros(8, 16, 64), torch.zeros(8, 16, 64)
    cache = Cache([], [])
    for _ in range(3):
        x = torch.randn(8, 16, 64)
        y, states = model(x, states, cache)
print(f"done {y.shape}")
