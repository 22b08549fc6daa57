"""tab-transformer-pytorch: a transformer over the columns of a table; float32."""

import sys

import torch
from tab_transformer_pytorch import FTTransformer

small = "--small" in sys.argv
width, depth, batch = (32, 2, 16) if small else (192, 6, 1024)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = FTTransformer(categories=(10, 5, 6, 5, 8), num_continuous=10, dim=width, depth=depth, heads=8, attn_dropout=0.1, ff_dropout=0.1).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(200):
    kinds, numbers = torch.randint(5, (batch, 5), device=device), torch.randn(batch, 10, device=device)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(kinds, numbers), torch.rand(batch, 1, device=device).round())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
