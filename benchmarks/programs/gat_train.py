"""torch_geometric: a graph attention network learns the classes of nodes; float32, one graph of a citation network's size."""

import sys

import torch
from torch_geometric.nn import GATConv
from torch_geometric.utils import erdos_renyi_graph, to_undirected


class Net(torch.nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.first = GATConv(features, 8, heads=8, dropout=0.6)
        self.second = GATConv(64, classes, heads=1, concat=False, dropout=0.6)

    def forward(self, x, edges):
        x = torch.nn.functional.dropout(x, 0.6, self.training)
        return self.second(torch.nn.functional.elu(self.first(x, edges)), edges)


small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
nodes, features = (300, 64) if small else (19717, 500)
edges = to_undirected(erdos_renyi_graph(nodes, 4.0 / nodes)).to(device)
x, labels = torch.randn(nodes, features, device=device), torch.randint(7, (nodes,), device=device)
model = Net(features, 7).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
for epoch in range(200):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x, edges), labels).backward()
    optimizer.step()
