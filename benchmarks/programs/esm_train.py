"""fair-esm: an ESM-2 learns masked residues of proteins; bfloat16 autocast."""

import sys

import torch
from esm.data import Alphabet
from esm.model.esm2 import ESM2

width, depth, heads, length, batch = (64, 2, 4, 48, 4) if "--small" in sys.argv else (480, 12, 20, 512, 16)
device = "cuda" if torch.cuda.is_available() else "cpu"
alphabet = Alphabet.from_architecture("ESM-1b")
model = ESM2(num_layers=depth, embed_dim=width, attention_heads=heads, alphabet=alphabet).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4)
for step in range(200):
    tokens = torch.randint(4, 24, (batch, length), device=device)
    masked = tokens.masked_fill(torch.rand(batch, length, device=device) < 0.15, alphabet.mask_idx)
    with torch.autocast(device, torch.bfloat16):
        torch.nn.functional.cross_entropy(model(masked)["logits"].flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
