"""MEGABYTE-pytorch: a language model of bytes in patches, two stages; bfloat16 autocast."""

import sys

import torch
from MEGABYTE_pytorch import MEGABYTE

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
widths, depths, lengths, batch = ((64, 32), (1, 1), (32, 4), 2) if small else ((768, 512), (6, 4), (512, 8), 4)
model = MEGABYTE(num_tokens=256, dim=widths, depth=depths, max_seq_len=lengths, rel_pos=True).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
for step in range(200):
    text = torch.randint(1, 256, (batch, lengths[0] * lengths[1]), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(text, return_loss=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
