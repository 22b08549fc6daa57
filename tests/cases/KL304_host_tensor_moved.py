import torch
from torch import nn


class Embedder(nn.Module):
    def forward(self, tokens):
        length = tokens.shape[1]
        positions = torch.arange(length).unsqueeze(0).to(tokens.device)  #! KL304
        mask = torch.tril(torch.ones(length, length)).to(tokens.device)  #! KL304
        noise = torch.randn(tokens.shape).cuda()  #! KL304
        return positions, mask, noise


def train(model, loader, optimizer, device, size):
    for x in loader:
        labels = torch.full((size,), 1.0).to(device)  #! KL304
        model(x, labels).backward()
        optimizer.step()


# Near misses.


class Good(nn.Module):
    def __init__(self, size, device):
        super().__init__()
        self.table = torch.arange(size).to(device)

    def forward(self, tokens, generator):
        positions = torch.arange(tokens.shape[1], device=tokens.device).to(tokens.device)
        rounded = torch.zeros(tokens.shape).to(torch.bfloat16)
        drawn = torch.randn(tokens.shape, generator=generator).to(tokens.device)
        if self.training:
            drawn = torch.zeros(tokens.shape).to(tokens.device)
        return positions, rounded, drawn, tokens.to(tokens.device)


def once(size, device):
    return torch.zeros(size).to(device)
