import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_dropout = nn.Dropout(0.1)

    def forward(self, q, k, v, mask=None):
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        if mask is not None:
            att = att.masked_fill(mask == 0, float("-inf"))
        att = F.softmax(att, dim=-1)  #! KL320
        att = self.attn_dropout(att)
        return att @ v


def short(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) / 8.0
    return torch.matmul(scores.softmax(dim=-1), v)  #! KL320


# Near misses.


def shown(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
    weights = torch.softmax(q @ k.mT, dim=-1)
    return weights @ v, weights


def scaled_after(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor):
    weights = torch.softmax(q @ k.mT, dim=-1)
    weights = weights * gate
    return weights @ v


def over_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT, dim=-2) @ v


def mixture(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, dim=-1) @ v
