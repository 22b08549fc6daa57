import torch
from torch import nn


class Left(nn.Module):
    def forward(self, a, b):
        return torch.diag(a) @ b  #! KL105


class Right(nn.Module):
    def forward(self, a, b):
        scale = torch.diag(a)
        return torch.matmul(b, scale)  #! KL105


def embed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.diag_embed(a).bmm(b)  #! KL105


# Near misses.


def trace(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.diag(a @ b) @ b  # the diagonal of a product: a vector


def off_diagonal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.diag(a, 1) @ b


def added(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.diag(a) + b
