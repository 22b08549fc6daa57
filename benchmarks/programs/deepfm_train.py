"""torchfm: a factorization machine with a network learns to recommend; float32, 26 fields as in click logs."""

import sys

import torch
from torchfm.model.dfm import DeepFactorizationMachineModel

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
fields = [100 if small else 20000] * 26
model = DeepFactorizationMachineModel(fields, embed_dim=16, mlp_dims=(16, 16) if small else (400, 400), dropout=0.2).to(device)
criterion, optimizer = torch.nn.BCELoss(), torch.optim.Adam(model.parameters(), lr=1e-3)
rows = torch.randint(fields[0], (64 if small else 8192, 26), device=device)
clicks = torch.randint(2, (len(rows),), device=device).float()
for step in range(200):
    loss = criterion(model(rows), clicks)
    model.zero_grad()
    loss.backward()
    optimizer.step()
