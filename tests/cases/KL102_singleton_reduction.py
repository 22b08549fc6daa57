import torch
import torch.nn.functional as F
from torch import nn


class MaxThenMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        x = self.linear(x)
        x = torch.max(x, dim=1, keepdim=True).values
        x = x - x.mean(dim=1, keepdim=True)  #! KL102
        return F.gelu(x)


class SumThenLogsumexp(nn.Module):
    def forward(self, x):
        x = torch.sum(x, dim=1, keepdim=True)
        x = torch.logsumexp(x, dim=1, keepdim=True)  #! KL102
        x = torch.logsumexp(x, dim=1)  #! KL102
        return x


class OneOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(64, 1)

    def forward(self, x):
        return torch.softmax(self.score(x), dim=-1)  #! KL102


def unsqueezed(x: torch.Tensor) -> torch.Tensor:
    return x.unsqueeze(0).amax(0)  #! KL102


# Near misses.


class Normal(nn.Module):
    def forward(self, x):
        mean = x.mean(dim=1, keepdim=True)
        y = x - mean  # x is wide again
        return y.sum(dim=1)


class OtherDimension(nn.Module):
    def forward(self, x):
        x = x.mean(dim=1, keepdim=True)
        return x.sum(dim=2)


class DroppedDimension(nn.Module):
    def forward(self, x):
        x = x.mean(dim=1)
        return x.sum(dim=1)


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(64, 1)

    def forward(self, x):
        return torch.softmax(self.score(x), dim=1)  # over the sequence
