import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        inner = torch.compile(self.inner)  #! KL310
        return inner(x)


def train(model, loader, optimizer):
    for epoch in range(3):
        model = torch.compile(model)  #! KL310
        for x in loader:
            model(x).backward()
            optimizer.step()


def steps(model, loader, optimizer):
    for x in loader:

        @torch.compile  #! KL310
        def step(x):
            return model(x)

        step(x).backward()
        optimizer.step()


# Near misses.


class Lazy(nn.Module):
    def forward(self, x):
        if self.compiled is None:
            self.compiled = torch.compile(self.inner)
        return self.compiled(x)


def blocks(model, names):
    for block in model.blocks:
        block.forward = torch.compile(block.forward)
    for name in names:
        part = getattr(model, name)
        setattr(model, name, torch.compile(part))


def once(model):
    return torch.compile(model)
