"""titans-pytorch: a memory that learns while it reads (gradients by torch.func) inside of a language model; float32."""

import sys

import torch
from titans_pytorch import MemoryAsContextTransformer

small = "--small" in sys.argv
width, depth, length, batch = (32, 2, 64, 2) if small else (384, 8, 512, 4)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = MemoryAsContextTransformer(num_tokens=256, dim=width, depth=depth, segment_len=32, num_persist_mem_tokens=4, num_longterm_mem_tokens=4).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
tokens = torch.randint(256, (batch, length), device=device)
for step in range(200):
    model(tokens, return_loss=True).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
