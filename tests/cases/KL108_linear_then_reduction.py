import torch
import torch.nn.functional as F
from torch import nn


class LinearSum(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 4096)

    def forward(self, x):
        x = self.linear(x)
        x = x / 2
        x = torch.sum(x, dim=1, keepdim=True)  #! KL108
        return x


class MatmulMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4096, 1024))

    def forward(self, x):
        return torch.matmul(x, self.weight.T).mean(dim=-1)  #! KL108


def total(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a @ b).sum()  #! KL108


# Near misses.


class Activated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 4096)

    def forward(self, x):
        return torch.relu(self.linear(x)).sum(dim=1)


class AlsoReturned(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 4096)

    def forward(self, x):
        y = self.linear(x)
        return y, y.sum(dim=1)


def largest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a @ b).amax(dim=1)


def batch(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(a, w).sum(dim=0)
