"""iTransformer: attention over the variates of a series learns to forecast; bfloat16 autocast."""

import sys

import torch
from iTransformer import iTransformer

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
width, depth, variates, back, batch = (64, 2, 17, 32, 4) if small else (512, 6, 321, 96, 32)
model = iTransformer(num_variates=variates, lookback_len=back, dim=width, depth=depth, heads=8, dim_head=64,
                     pred_length=(12, 24), num_tokens_per_variate=1, use_reversible_instance_norm=True).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(300):
    series, later = torch.randn(batch, back, variates, device=device), torch.randn(batch, 24, variates, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(series, (later[:, :12], later))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
