"""torch_geometric: a graph transformer (GPS) learns from molecules; float16 with scaled losses."""

import sys

import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, GPSConv, global_add_pool

small = "--small" in sys.argv
width, depth, graphs = (16, 2, 8) if small else (64, 10, 256)
device = "cuda" if torch.cuda.is_available() else "cpu"
mlp = lambda: nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
layers = nn.ModuleList(GPSConv(width, GINEConv(mlp()), heads=4, dropout=0.1) for _ in range(depth)).to(device)
optimizer, scaler = torch.optim.AdamW(layers.parameters(), lr=1e-3), torch.amp.GradScaler(device)
mol = lambda n: Data(x=torch.randn(n, width), edge_index=torch.randint(n, (2, 3 * n)), edge_attr=torch.randn(3 * n, width))
data = Batch.from_data_list([mol(20 + i % 9) for i in range(graphs)]).to(device)
for step in range(200):
    with torch.autocast(device, torch.float16):
        x = data.x
        for layer in layers:
            x = layer(x, data.edge_index, data.batch, edge_attr=data.edge_attr)
        loss = global_add_pool(x, data.batch).float().pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer), scaler.update()
