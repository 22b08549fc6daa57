"""One file that trains at import: a recurrent speech tagger with weight-normed convolutions and closures; float32."""

import sys
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Sizes:
    mels: int = 80
    width: int = 32 if small else 512
    layers: int = 2 if small else 4
    act: object = staticmethod(lambda x: x * torch.sigmoid(1.702 * x))


class Conv(nn.Conv1d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(nn.functional.pad(x, (2, 0)), weight, bias)


class Block(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        self.conv = weight_norm(Conv(sizes.width, 2 * sizes.width, 3))
        self.norm = nn.GroupNorm(1, sizes.width)

    def forward(self, x):
        a, b = self.conv(self.norm(x)).chunk(2, 1)
        return x + self.sizes.act(a) * torch.tanh(b)


class Tagger(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.into = nn.Conv1d(sizes.mels, sizes.width, 1)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.rnn = nn.GRU(sizes.width, sizes.width, batch_first=True)
        self.out = nn.Linear(sizes.width, 40)

    def forward(self, x, state):
        x = self.into(x)
        for block in self.blocks:
            x = block.forward(x)
        x, state = self.rnn(x.transpose(1, 2), state)
        return self.out(x), state


sizes = Sizes()
model = Tagger(sizes).to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
state = torch.zeros(1, 4 if small else 32, sizes.width, device=device)
for step in range(200):
    sound = torch.randn(state.shape[1], sizes.mels, 50 if small else 1000, device=device)
    scores, state = model(sound, state.detach())
    loss = scores.logsumexp(-1).mean() - scores[..., 0].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
