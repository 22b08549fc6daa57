"""torchdiffeq: a neural ODE learns a spiral, with an adaptive solver and the adjoint, as its example; float32."""

import sys

import torch
from torchdiffeq import odeint_adjoint as odeint

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
times = torch.linspace(0, 2.5, 10, device=device)
class Field(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))
    def forward(self, t, y):
        return self.net(y**3)
field = Field(50 if small else 1024).to(device)
optimizer = torch.optim.RMSprop(field.parameters(), lr=1e-3)
matrix = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]], device=device)
for step in range(200):
    y0 = torch.randn(64 if small else 4096, 2, device=device)
    true = torch.stack([y0 @ torch.linalg.matrix_exp(t * matrix) for t in times])
    optimizer.zero_grad()
    loss = (odeint(field, y0, times) - true).abs().mean()
    loss.backward()
    optimizer.step()
