"""pyro: a variational autoencoder of torch's own modules alone learns by SVI; float32."""

import pyro
import torch
from pyro import distributions
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
encoder = nn.Sequential(nn.Linear(784, 400), nn.Softplus(), nn.Linear(400, 100)).to(device)
decoder = nn.Sequential(nn.Linear(50, 400), nn.Softplus(), nn.Linear(400, 784)).to(device)

def model(x):
    pyro.module("decoder", decoder)
    z = pyro.sample("z", distributions.Normal(torch.zeros(len(x), 50, device=device), 1.0).to_event(2))
    pyro.sample("x", distributions.Bernoulli(logits=decoder(z)).to_event(2), obs=x)

def guide(x):
    mean, scale = pyro.module("encoder", encoder)(x).chunk(2, dim=1)
    pyro.sample("z", distributions.Normal(mean, scale.exp()).to_event(2))

svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), loss=pyro.infer.Trace_ELBO())
for step in range(300):
    svi.step(torch.rand(256, 784, device=device).round())
