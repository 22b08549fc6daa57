import math

import torch
import torch.nn.functional as F
from torch import nn


class Gelu(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))  #! KL101


class Mish(nn.Module):
    def forward(self, x):
        gate = F.softplus(x)
        gate = torch.tanh(gate)
        return x * gate  #! KL101


class Tail(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 512)
        self.act = nn.SiLU()
        self.scale = 2.0

    def forward(self, x):
        x = self.linear(x)
        x = self.act(x)
        x *= self.scale
        x = x.clamp(min=-1.0, max=1.0)  #! KL101
        return x


def soft(x: torch.Tensor) -> torch.Tensor:
    return x.abs().add(1).reciprocal()  #! KL101


# Near misses.


class Swish(nn.Module):
    """Two operations: too little to gain."""

    def forward(self, x):
        return x * torch.sigmoid(x)


class Split(nn.Module):
    """A matrix product in between writes its result anyway."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        x = torch.relu(x) * 2
        x = self.linear(x)
        return torch.relu(x) + 1


def schedule(step: float, warmup: float, x: torch.Tensor) -> torch.Tensor:
    factor = math.sqrt(step / warmup) * 2 + 1  # numbers, not tensors
    return x * factor


def loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.log(a.sum()) * 0.5 + b.mean() - 1  # single numbers


def branches(x: torch.Tensor, flag: bool) -> torch.Tensor:
    x = torch.relu(x)
    if flag:
        x = x + 1
    return x * 2


@torch.compile
def compiled(x: torch.Tensor) -> torch.Tensor:
    return x.abs().add(1).reciprocal()


def scripted(x: torch.Tensor) -> torch.Tensor:
    return x.abs().add(1).reciprocal()


class Compiled(nn.Module):
    """The compiler fuses it."""

    @torch.compile(mode="reduce-overhead")
    def forward(self, x):
        return torch.tanh(x).exp() * x


class Whole(nn.Module):
    def forward(self, x):
        return torch.tanh(x).exp() * x


quick, whole = torch.jit.script(scripted), torch.compile(Whole().cuda())
