"""rectified-flow-pytorch: a U-Net learns the straight way from noise to images; float32."""

import sys

import torch
from rectified_flow_pytorch import RectifiedFlow, Unet

small = "--small" in sys.argv
width, size, batch = (16, 16, 2) if small else (64, 64, 16)
device = "cuda" if torch.cuda.is_available() else "cpu"
flow = RectifiedFlow(Unet(dim=width, dim_mults=(1, 2, 4), flash_attn=True)).to(device)
optimizer = torch.optim.Adam(flow.parameters(), lr=3e-4)
for step in range(200):
    flow(torch.rand(batch, 3, size, size, device=device)).backward()
    torch.nn.utils.clip_grad_norm_(flow.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
