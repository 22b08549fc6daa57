"""conformer: a speech encoder learns with CTC; bfloat16 autocast, loss scaling as for float16."""

import sys

import torch
from conformer import Conformer

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
width, depth, length = (64, 2, 50) if small else (512, 12, 1024)
body = Conformer(dim=width, depth=depth, dim_head=64, heads=width // 64, conv_kernel_size=31)
model = torch.nn.Sequential(torch.nn.Linear(80, width), body, torch.nn.Linear(width, 64)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler(device)
frames = torch.randn(2 if small else 16, length, 80, device=device)
texts = torch.randint(1, 64, (len(frames), 10), device=device)
sizes = torch.full((len(frames),), length), torch.full((len(frames),), 10)
for step in range(200):
    with torch.autocast(device, dtype=torch.bfloat16):
        scores = model(frames).float().log_softmax(-1).transpose(0, 1)
        loss = torch.nn.functional.ctc_loss(scores, texts, *sizes)
    scaler.scale(loss).backward()
    scaler.step(optimizer), scaler.update(), optimizer.zero_grad()
