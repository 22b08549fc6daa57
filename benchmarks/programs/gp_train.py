"""gpytorch: an exact Gaussian process learns its kernel from 1000 points, as in its tutorial; float32."""

import sys

import gpytorch
import torch

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.rand(500 if small else 8000, 4, device=device)
y = torch.sin(6 * x).sum(-1) + 0.1 * torch.randn_like(x[:, 0])
class GP(gpytorch.models.ExactGP):
    def __init__(self):
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=4))
    def forward(self, points):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(points), self.covar_module(points))
model = GP().to(device).train()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
loss_of = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
for step in range(200):
    optimizer.zero_grad()
    loss = -loss_of(model(x), y)
    loss.backward()
    optimizer.step()
