"""reformer-pytorch: reversible layers (their own backward) with hashed attention learn to write; float32."""

import sys

import torch
from reformer_pytorch import ReformerLM

small = "--small" in sys.argv
width, depth, length, batch = (64, 2, 256, 2) if small else (512, 6, 4096, 4)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = ReformerLM(num_tokens=256, dim=width, depth=depth, max_seq_len=length, heads=8, bucket_size=64, n_hashes=4, causal=True).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
tokens = torch.randint(256, (batch, length), device=device)
for step in range(200):
    loss = torch.nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
