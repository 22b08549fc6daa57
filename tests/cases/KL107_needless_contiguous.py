import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(64, 64)

    def forward(self, query, key):
        query = self.proj(query).contiguous()  #! KL107
        return query @ key.transpose(-1, -2).contiguous()  #! KL107


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a.t().contiguous(), b)  #! KL107


def twice(a: torch.Tensor) -> torch.Tensor:
    return a.contiguous().contiguous()  #! KL107


# Near misses.


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().view(x.shape[0], -1)  # view needs it


def batched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.matmul(a.permute(2, 0, 1).contiguous(), b)  # BLAS takes no such layout


def layout(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x).contiguous(memory_format=torch.channels_last)
