"""e3nn: an equivariant convolution over clouds of points, its code generated and scripted; float32."""

import sys

import torch
from e3nn import o3
from e3nn.nn.models.gate_points_2101 import Network

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
count, batch = (20, 2) if small else (64, 32)
model = Network(irreps_in="0e", irreps_hidden="16x0e+16x0o+8x1e+8x1o", irreps_out="0e", irreps_node_attr="0e",
                irreps_edge_attr=o3.Irreps.spherical_harmonics(2), layers=2, max_radius=2.0, number_of_basis=10,
                radial_layers=1, radial_neurons=32, num_neighbors=10, num_nodes=count, reduce_output=True).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
where = torch.arange(batch, device=device).repeat_interleave(count)
for step in range(200):
    places, ones = 2 * torch.randn(batch * count, 3, device=device), torch.ones(batch * count, 1, device=device)
    loss = (model({"pos": places, "batch": where, "x": ones, "z": ones}) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
