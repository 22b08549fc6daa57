"""x-transformers: a decoder with rotary positions and gated feed-forwards learns, bfloat16 autocast."""

import sys

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
width, depth, heads, length = (64, 2, 2, 33) if small else (768, 8, 12, 513)
layers = Decoder(dim=width, depth=depth, heads=heads, rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True)
net = TransformerWrapper(num_tokens=256, max_seq_len=1024, attn_layers=layers)
model = AutoregressiveWrapper(net).to(device)
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(256, (2 if small else 16, length), device=device)
for step in range(200):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
